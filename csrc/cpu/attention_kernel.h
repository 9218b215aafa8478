// Attention over one tile of keys, written once for every instruction set; `Simd` is its vector type (simd_*.h).
// Included by attention_unit.h.
//
// A row is one query head of one token. Order of the sums of a row, whatever shares its unit:
//   query      q * (scale * log2 e), so that the softmax is in powers of two
//   score      fma chain over d = 0, 1, ... from 0
//   peak, sum  over the tile's keys in lanes key % kLanes, each ascending; lanes then folded in halves
//   values     fma chain over keys ascending from 0, for each d
// and a tile is merged into those before it as acc = fma(acc, 2^(old peak - peak), tile * 2^(tile peak - peak)).
// Lanes and rows never mix before the fold, and keys after a row's position are left out of its sums, not multiplied by
// zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_tile.h"

namespace foreword {
namespace {

#define FOREWORD_INLINE [[gnu::always_inline]] inline

// Templates of the standard library stay out: the linker might keep the copy compiled for this instruction set.
constexpr std::size_t kRowGroup = 6;  // 6 rows x 2 vectors of accumulators, and what they are made of, fit 16 registers

// 2^x for x <= 0 within an ulp or so; 2^-126 below -126; NaN stays NaN.
template <class Simd>
FOREWORD_INLINE typename Simd::Float power_of_two(typename Simd::Float x) {
  const auto magic = Simd::set(0x1.8p23f + 127.0f);  // x + magic holds round(x) + 127 in its low bits
  x = Simd::larger(Simd::set(-126.0f), x);
  const auto shifted = x + magic;
  const auto r = x - (shifted - magic);  // exact, in [-0.5, 0.5]
  auto p = Simd::set(0x1.41fbbcp-13f);   // minimax in relative error, the constant term kept at 1
  p = Simd::multiply_add(p, r, Simd::set(0x1.5f3e54p-10f));
  p = Simd::multiply_add(p, r, Simd::set(0x1.3b2d4cp-7f));
  p = Simd::multiply_add(p, r, Simd::set(0x1.c6aee8p-5f));
  p = Simd::multiply_add(p, r, Simd::set(0x1.ebfbdcp-3f));
  p = Simd::multiply_add(p, r, Simd::set(0x1.62e43p-1f));
  p = Simd::multiply_add(p, r, Simd::set(1.0f));
  return p * Simd::round_to_power(shifted);
}

// Where a unit's rows are worked on; carved out of the thread's scratch.
struct TileWork {
  std::size_t rows, head_dim, padded_dim;
  float* queries;      // groups of up to kRowGroup rows, each [D, rows of the group], scaled
  float* scores;       // [rows, kAttentionTile]: scores, then weights
  float* tile_values;  // [rows, padded_dim] of this tile
  float* values;       // [rows, padded_dim] of the tiles so far
  float *tile_peak, *tile_sum, *peak, *sum, *old_share, *tile_share;  // [rows], padded to whole vectors
  std::int32_t* limits;                                               // [rows] keys of this tile that the row sees
  float* packed_keys;                                                 // panels [D, kPanel]
  float* packed_values;                                               // panels [kAttentionTile, kPanel]

  TileWork(const AttentionProblem& problem, const AttentionUnit& unit, float* scratch) {
    rows = unit.num_tokens * problem.group;
    head_dim = problem.cache.head_dim;
    padded_dim = problem.padded_dim;
    const std::size_t padded_rows = (rows + kPanel - 1) / kPanel * kPanel;
    const auto take = [&](std::size_t size) {
      float* const part = scratch;
      scratch += size;
      return part;
    };
    scores = take(rows * kAttentionTile);
    tile_values = take(rows * padded_dim);
    values = take(rows * padded_dim);
    queries = take(padded_rows * head_dim);
    for (float** part : {&tile_peak, &tile_sum, &peak, &sum, &old_share, &tile_share}) *part = take(padded_rows);
    limits = reinterpret_cast<std::int32_t*>(take(padded_rows));
    packed_keys = take(kAttentionTile * head_dim);
    packed_values = take(kAttentionTile * padded_dim);
    for (std::size_t i = 0; i < 6 * padded_rows; ++i) tile_peak[i] = 0.0f;  // the padding is computed with
  }

  // The first tile's result is the running one. Exchanges buffers, copies nothing but the scalars.
  void start_from_tile() {
    float* const freed = values;
    values = tile_values;
    tile_values = freed;
    for (std::size_t r = 0; r < rows; ++r) {
      peak[r] = tile_peak[r];
      sum[r] = tile_sum[r];
    }
  }
};

// Where a tile's keys and values lie.
template <class Simd, class T>
struct TileKeys {
  const T* key_vectors[kAttentionTile / Simd::kLanes];  // dimension d of kLanes keys: key_vectors[i] + d * key_stride
  std::size_t key_stride;
  const T* value_rows[kAttentionTile];
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
template <class Simd, class T, std::size_t kRows, std::size_t kVectors>
FOREWORD_INLINE void score_block(const float* queries, const T* const* key_vectors, std::size_t key_stride,
                                 std::size_t head_dim, float* scores) {
  typename Simd::Float sums[kRows][kVectors];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = Simd::set(0.0f);
  }
  const T* keys[kVectors];
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) keys[v] = key_vectors[v];
  for (std::size_t d = 0; d < head_dim; ++d) {
    add_products<Simd, kRows, kVectors>([&](std::size_t r) { return Simd::set(queries[d * kRows + r]); },
                                        [&](std::size_t v) { return Simd::load(keys[v] + d * key_stride); }, sums);
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) Simd::store(scores + r * kAttentionTile + v * Simd::kLanes, sums[r][v]);
  }
}

// out[r, v * kLanes + lane] (+)= sum over keys [begin, end) of weights[r, key] * row(key)[v * kLanes + lane].
template <class Simd, std::size_t kRows, std::size_t kVectors, class RowOf>
FOREWORD_INLINE void value_block(const float* weights, RowOf row_of, std::size_t begin, std::size_t end, float* out,
                                 std::size_t out_stride) {
  typename Simd::Float sums[kRows][kVectors];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = begin == 0 ? Simd::set(0.0f) : Simd::load(out + r * out_stride + v * Simd::kLanes);
    }
  }
  for (std::size_t key = begin; key < end; ++key) {
    const auto* const row = row_of(key);
    add_products<Simd, kRows, kVectors>([&](std::size_t r) { return Simd::set(weights[r * kAttentionTile + key]); },
                                        [&](std::size_t v) { return Simd::load(row + v * Simd::kLanes); }, sums);
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) Simd::store(out + r * out_stride + v * Simd::kLanes, sums[r][v]);
  }
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

// Scores of every row for the first `num_keys` keys; what lies behind a row's limit is not looked at later.
template <class Simd, class T>
void score_tile(const TileWork& work, const TileKeys<Simd, T>& keys, std::size_t num_keys) {
  const std::size_t last = work.rows % kRowGroup, full = work.rows - last;
  for (std::size_t key = 0; key < num_keys; key += 2 * Simd::kLanes) {
    for (std::size_t r = 0; r < full; r += kRowGroup) {
      if (largest_limit(work.limits + r, kRowGroup) <= key) continue;
      score_block<Simd, T, kRowGroup, 2>(work.queries + r * work.head_dim, keys.key_vectors + key / Simd::kLanes,
                                         keys.key_stride, work.head_dim, work.scores + r * kAttentionTile + key);
    }
  }
  if (last == 0) return;
  with_rows(last, [&]<std::size_t kRows>() {
    constexpr std::size_t kVectors = vectors_for(kRows);
    for (std::size_t key = 0; key < num_keys; key += kVectors * Simd::kLanes) {
      score_block<Simd, T, kRows, kVectors>(work.queries + full * work.head_dim, keys.key_vectors + key / Simd::kLanes,
                                            keys.key_stride, work.head_dim, work.scores + full * kAttentionTile + key);
    }
  });
}

// Scores of one row become weights; also its peak and sum.
template <class Simd>
FOREWORD_INLINE void soften_row(float* scores, std::size_t limit, float* peak_out, float* sum_out) {
  const std::size_t whole = limit / Simd::kLanes * Simd::kLanes;
  auto peaks = Simd::set(-__builtin_inff());
  for (std::size_t key = 0; key < whole; key += Simd::kLanes) peaks = Simd::larger(Simd::load(scores + key), peaks);
  if (whole != limit) {
    const auto rest = Simd::keep_first(limit - whole, Simd::load(scores + whole), Simd::set(-__builtin_inff()));
    peaks = Simd::larger(rest, peaks);
  }
  *peak_out = Simd::largest(peaks);
  const auto peak = Simd::set(*peak_out);
  auto sums = Simd::set(0.0f);
  for (std::size_t key = 0; key < whole; key += Simd::kLanes) {
    const auto weight = power_of_two<Simd>(Simd::load(scores + key) - peak);
    Simd::store(scores + key, weight);
    sums = sums + weight;
  }
  if (whole != limit) {
    const auto weight = power_of_two<Simd>(Simd::load(scores + whole) - peak);
    Simd::store(scores + whole, weight);
    sums = sums + Simd::keep_first(limit - whole, weight, Simd::set(0.0f));
  }
  *sum_out = Simd::sum(sums);
}

template <class Simd>
void soften_tile(const TileWork& work) {
  for (std::size_t r = 0; r < work.rows; ++r) {
    const std::size_t limit = static_cast<std::size_t>(work.limits[r]);
    if (limit == kAttentionTile) {
      soften_row<Simd>(work.scores + r * kAttentionTile, kAttentionTile, work.tile_peak + r, work.tile_sum + r);
    } else if (limit > 0) {
      soften_row<Simd>(work.scores + r * kAttentionTile, limit, work.tile_peak + r, work.tile_sum + r);
    } else {
      work.tile_peak[r] = -__builtin_inff();
      work.tile_sum[r] = 0.0f;
    }
  }
}

// Weighted values of rows [first, first + kRows), kVectors vectors from dimension d on. The keys that all of them see
// go together, the others row by row.
template <class Simd, std::size_t kRows, std::size_t kVectors, class RowOf>
FOREWORD_INLINE void value_rows(const TileWork& work, std::size_t first, std::size_t d, RowOf row_of) {
  const std::int32_t* const limits = work.limits + first;
  const float* const weights = work.scores + first * kAttentionTile;
  float* const out = work.tile_values + first * work.padded_dim + d;
  const std::size_t common = smallest_limit(limits, kRows);
  value_block<Simd, kRows, kVectors>(weights, row_of, 0, common, out, work.padded_dim);
  for (std::size_t r = 0; r < kRows; ++r) {
    const std::size_t limit = static_cast<std::size_t>(limits[r]);
    if (limit > common) {
      value_block<Simd, 1, kVectors>(weights + r * kAttentionTile, row_of, common, limit, out + r * work.padded_dim,
                                     work.padded_dim);
    }
  }
}

// Values of the whole tile; panel_of(d) gives the row function of the dimensions from d on.
template <class Simd, std::size_t kWidth, class PanelOf>
FOREWORD_INLINE void value_tile(const TileWork& work, PanelOf panel_of) {
  constexpr std::size_t kVectors = kWidth / Simd::kLanes;
  const std::size_t last = work.rows % kRowGroup, full = work.rows - last;
  for (std::size_t d = 0; d < work.padded_dim; d += kWidth) {
    const auto row_of = panel_of(d);
    for (std::size_t r = 0; r < full; r += kRowGroup) {
      for (std::size_t part = 0; part < kWidth; part += 2 * Simd::kLanes) {
        value_rows<Simd, kRowGroup, 2>(work, r, d + part, [&](std::size_t key) { return row_of(key) + part; });
      }
    }
    if (last == 0) continue;
    with_rows(last, [&]<std::size_t kRows>() {
      constexpr std::size_t kStep = vectors_for(kRows) < kVectors ? vectors_for(kRows) : kVectors;
      for (std::size_t part = 0; part < kWidth; part += kStep * Simd::kLanes) {
        value_rows<Simd, kRows, kStep>(work, full, d + part, [&](std::size_t key) { return row_of(key) + part; });
      }
    });
  }
}

}  // namespace
}  // namespace foreword
