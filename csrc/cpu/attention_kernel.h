// Attention over one tile of keys, written once for every instruction set; `Simd` is its vector type (simd_*.h).
// Included by attention_band.h.
//
// A row is one query head of one token. Order of the sums of a row, whatever shares its unit:
//   query      q * (scale * log2 e), so that the softmax is in powers of two
//   score      fma chain over d = 0, 1, ... from 0
//   peak, sum  over the tile's keys in lanes key % kLanes, each ascending; lanes then folded in halves
//   values     fma chain over keys ascending from 0, for each d
// and a tile is merged into those before it as acc = fma(acc, 2^(old peak - peak), tile * 2^(tile peak - peak)). Lanes
// and rows never mix before the fold, and keys after a row's position are left out of its sums, not multiplied by zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_ahead.h"

namespace foreword {
namespace {

#define FOREWORD_INLINE [[gnu::always_inline]] inline

// Templates of the standard library stay out: the linker might keep the copy compiled for this instruction set.
constexpr std::size_t kRowGroup = 6;  // 6 rows x 2 vectors of accumulators, and what they are made of, fit 16 registers

// x = 2^x for x <= 0 within an ulp or so; 2^-126 below -126; NaN stays NaN. Step by step for all vectors: one vector's
// steps wait for one another, and the processor does not look far enough ahead to find another's.
template <class Simd, std::size_t kVectors>
FOREWORD_INLINE void powers_of_two(typename Simd::Float (&x)[kVectors]) {
  constexpr float kTerms[] = {0x1.5f3e54p-10f, 0x1.3b2d4cp-7f, 0x1.c6aee8p-5f, 0x1.ebfbdcp-3f, 0x1.62e43p-1f, 1.0f};
  const auto magic = Simd::set(0x1.8p23f + 127.0f);  // x + magic holds round(x) + 127 in its low bits
  typename Simd::Float shifted[kVectors], p[kVectors];
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) x[v] = Simd::larger(Simd::set(-126.0f), x[v]);
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) shifted[v] = x[v] + magic;
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) x[v] = x[v] - (shifted[v] - magic);  // exact, in [-0.5, 0.5]
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v)
    p[v] = Simd::set(0x1.41fbbcp-13f);  // minimax in relative error, last term 1
#pragma GCC unroll 8
  for (const float term : kTerms) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) p[v] = Simd::multiply_add(p[v], x[v], Simd::set(term));
  }
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) x[v] = p[v] * Simd::round_to_power(shifted[v]);
}

template <class Simd>
FOREWORD_INLINE typename Simd::Float power_of_two(typename Simd::Float x) {
  typename Simd::Float one[1] = {x};
  powers_of_two<Simd>(one);
  return one[0];
}

// Where a tile's keys lie.
template <class Simd, class T>
struct TileKeys {
  const T* key_vectors[kAttentionTile / Simd::kLanes];  // dimension d of kLanes keys: key_vectors[i] + d * key_stride
  std::size_t key_stride;
};

// sums[r][v] += factor_of(r) * vector_of(v). The fewer of the two are held while the others pass by one at a time: with
// 12 sums there is no register left for more, and a sum that lives in memory costs each step the way there and back.
template <class Simd, std::size_t kRows, std::size_t kVectors, class FactorOf, class VectorOf>
FOREWORD_INLINE void add_products(FactorOf factor_of, VectorOf vector_of,
                                  typename Simd::Float (&sums)[kRows][kVectors]) {
  if constexpr (kRows < kVectors) {
    typename Simd::Float factors[kRows];
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) factors[r] = factor_of(r);
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto vector = vector_of(v);
#pragma GCC unroll 8
      for (std::size_t r = 0; r < kRows; ++r) sums[r][v] = Simd::multiply_add(factors[r], vector, sums[r][v]);
    }
  } else {
    typename Simd::Float vectors[kVectors];
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) vectors[v] = vector_of(v);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto factor = factor_of(r);
#pragma GCC unroll 8
      for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = Simd::multiply_add(factor, vectors[v], sums[r][v]);
    }
  }
}

// scores[r, v * kLanes + lane] = queries[r] . key; queries [D, kRows].
template <class Simd, class T, std::size_t kRows, std::size_t kVectors, class Ahead>
FOREWORD_INLINE void score_block(const float* queries, const T* const* key_vectors, std::size_t key_stride,
                                 std::size_t head_dim, float* scores, Ahead& ahead) {
  typename Simd::Float sums[kRows][kVectors];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = Simd::set(0.0f);
  }
  const T* keys[kVectors];
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) keys[v] = key_vectors[v];
  for (std::size_t d = 0; d < head_dim;) {
    ahead.step();
    const std::size_t end = head_dim - d < Ahead::kStep ? head_dim : d + Ahead::kStep;
#pragma GCC unroll 4
    for (; d < end; ++d) {
      add_products<Simd, kRows, kVectors>([&](std::size_t r) { return Simd::set(queries[d * kRows + r]); },
                                          [&](std::size_t v) { return Simd::load(keys[v] + d * key_stride); }, sums);
    }
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) Simd::store(scores + r * kAttentionTile + v * Simd::kLanes, sums[r][v]);
  }
}

// sums[r, v * kLanes + lane] = sum over keys [0, num_keys) of weights[r, key] * row(key)[v * kLanes + lane].
template <class Simd, std::size_t kRows, std::size_t kVectors, class RowOf, class Ahead>
FOREWORD_INLINE void sum_values(const float* weights, RowOf row_of, std::size_t num_keys, Ahead& ahead,
                                typename Simd::Float (&sums)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = Simd::set(0.0f);
  }
  for (std::size_t key = 0; key < num_keys;) {
    ahead.step();
    const std::size_t end = num_keys - key < Ahead::kStep ? num_keys : key + Ahead::kStep;
#pragma GCC unroll 4
    for (; key < end; ++key) {
      const auto* const row = row_of(key);
      add_products<Simd, kRows, kVectors>([&](std::size_t r) { return Simd::set(weights[r * kAttentionTile + key]); },
                                          [&](std::size_t v) { return Simd::load(row + v * Simd::kLanes); }, sums);
    }
  }
}

// Goes on with the sums of one row in `out` for keys [begin, end).
template <class Simd, std::size_t kVectors, class RowOf>
FOREWORD_INLINE void add_values(const float* weights, RowOf row_of, std::size_t begin, std::size_t end, float* out) {
  typename Simd::Float sums[1][kVectors];
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) sums[0][v] = Simd::load(out + v * Simd::kLanes);
  for (std::size_t key = begin; key < end; ++key) {
    const auto* const row = row_of(key);
    add_products<Simd, 1, kVectors>([&](std::size_t) { return Simd::set(weights[key]); },
                                    [&](std::size_t v) { return Simd::load(row + v * Simd::kLanes); }, sums);
  }
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) Simd::store(out + v * Simd::kLanes, sums[0][v]);
}

FOREWORD_INLINE std::size_t largest_limit(const std::int32_t* limits, std::size_t rows) {
  std::int32_t largest = limits[0];
  for (std::size_t r = 1; r < rows; ++r) largest = limits[r] > largest ? limits[r] : largest;
  return static_cast<std::size_t>(largest);
}

FOREWORD_INLINE std::size_t smallest_limit(const std::int32_t* limits, std::size_t rows) {
  std::int32_t smallest = limits[0];
  for (std::size_t r = 1; r < rows; ++r) smallest = limits[r] < smallest ? limits[r] : smallest;
  return static_cast<std::size_t>(smallest);
}

// Calls body.operator()<n>() for the n in 1..kRowGroup that is `rows`.
template <class Body>
FOREWORD_INLINE void with_rows(std::size_t rows, Body body) {
  switch (rows) {
    case 1:
      return body.template operator()<1>();
    case 2:
      return body.template operator()<2>();
    case 3:
      return body.template operator()<3>();
    case 4:
      return body.template operator()<4>();
    case 5:
      return body.template operator()<5>();
    default:
      return body.template operator()<6>();
  }
}

// Vectors beside one another: enough chains to hide the latency of a multiply-add.
constexpr std::size_t vectors_for(std::size_t rows) {
  return rows <= 3 ? 4 : 2;
}

}  // namespace
}  // namespace foreword
