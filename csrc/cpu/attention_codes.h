// One tile of keys and values that are codes, for a band of a unit's rows: products of integers, which are exact in any
// order. Included by attention_code_unit.h.
//
//   query      codes by length, as an int16 key's (attention.h); the row's scale is theirs times (scale * log2 e)
//   score      float(sum of products of codes) * the key's scale * the row's
//   weight     2^(score - peak), and the tile's sum of them, as for floats
//   its code   round(w * (1 / step)) with w the weight times its value's scale, and step the largest of
//              the largest w * (1 / 32767), the sum of all w * (1 / kMostWeights), of the keys that the row sees,
//              and kLeastStep
//   values     float(sum of products of codes) * step, then merged as for floats
//
// Nothing leaves 32 bits. A score: by Cauchy and Schwarz no part of its sum exceeds the product of both lengths in
// codes, (32767 + sqrt(D) / 2)^2 < 2^31 (a key of int8 is shorter). Values: the sum of a row's codes is at most
// kMostWeights and a half for each key, times 8191.
#pragma once

#include "attention_band.h"
#include "codes.h"

namespace foreword {
namespace {

constexpr float kMostWeights = 262000.0f;
constexpr float kMostWeight = 32767.0f;
constexpr float kLeastStep = 0x1p-126f;

// Where a tile's keys lie. A vector is kLanes pairs.
template <class Simd, class Code>
struct TileCodes {
  const Code* key_vectors[kAttentionTile / Simd::kLanes];  // dimensions 2i, 2i + 1 of kLanes keys: + i * key_stride
  std::size_t key_stride;
  const float* key_scales;  // one a key
};

// A row's weights as codes lie where its scores began.
constexpr std::size_t kCodesStride = kAttentionTile * sizeof(float) / sizeof(std::int16_t);
inline std::int16_t* weight_codes(const RowBand& band, std::size_t row) {
  return reinterpret_cast<std::int16_t*>(band.scores + row * kAttentionTile);
}

// Vectors beside one another. Adding integers has no latency to hide: only so that factors are not loaded too often.
constexpr std::size_t code_vectors_for(std::size_t rows) {
  return rows <= 2 ? 4 : 2;
}

// sums[r][v] = sum over i in [0, count) of the two products of factor_of(i, r) and vector_of(i, v).
template <class Simd, std::size_t kRows, std::size_t kVectors, class FactorOf, class VectorOf, class Ahead>
FOREWORD_INLINE void sum_pairs(std::size_t count, FactorOf factor_of, VectorOf vector_of, Ahead& ahead,
                               typename Simd::Int (&sums)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = Simd::zeros();
  }
  for (std::size_t i = 0; i < count;) {
    ahead.step();
    const std::size_t end = count - i < Ahead::kStep ? count : i + Ahead::kStep;
#pragma GCC unroll 2
    for (; i < end; ++i) {
      typename Simd::Pairs vectors[kVectors];
#pragma GCC unroll 8
      for (std::size_t v = 0; v < kVectors; ++v) vectors[v] = vector_of(i, v);
#pragma GCC unroll 8
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto factor = factor_of(i, r);
#pragma GCC unroll 8
        for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = Simd::add_products(sums[r][v], factor, vectors[v]);
      }
    }
  }
}

// Scores of rows [first, first + kRows), kVectors vectors of keys from `key` on.
template <class Simd, std::size_t kRows, std::size_t kVectors, class Code, class Ahead>
FOREWORD_INLINE void score_codes_block(const RowBand& band, std::size_t first, const TileCodes<Simd, Code>& tile,
                                       std::size_t key, Ahead& ahead) {
  const std::int16_t* const queries = band.query_codes + first * band.head_dim;
  const Code* keys[kVectors];
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) keys[v] = tile.key_vectors[key / Simd::kLanes + v];
  typename Simd::Int sums[kRows][kVectors];
  sum_pairs<Simd, kRows, kVectors>(
      band.head_dim / 2, [&](std::size_t i, std::size_t r) { return Simd::set_pair(queries + (i * kRows + r) * 2); },
      [&](std::size_t i, std::size_t v) { return Simd::load_pairs(keys[v] + i * tile.key_stride); }, ahead, sums);
  // Taken before the stores, which might change what `band` points at for all that the compiler knows.
  const float* const row_scales = band.row_scales + first;
  float* const scores = band.scores + first * kAttentionTile + key;
  typename Simd::Float key_scales[kVectors];
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) key_scales[v] = Simd::load(tile.key_scales + key + v * Simd::kLanes);
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
    const auto row_scale = Simd::set(row_scales[r]);
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      Simd::store(scores + r * kAttentionTile + v * Simd::kLanes,
                  Simd::to_floats(sums[r][v]) * key_scales[v] * row_scale);
    }
  }
}

// Scores of every row for the first `num_keys` keys; what lies behind a row's limit is not looked at later.
template <class Simd, class Code, class Ahead>
void score_codes(const RowBand& band, const TileCodes<Simd, Code>& tile, std::size_t num_keys, Ahead& ahead) {
  const std::size_t last = band.rows % kRowGroup, full = band.rows - last;
  for (std::size_t key = 0; key < num_keys; key += 2 * Simd::kLanes) {
    for (std::size_t r = 0; r < full; r += kRowGroup) {
      if (largest_limit(band.limits + r, kRowGroup) <= key) continue;
      score_codes_block<Simd, kRowGroup, 2>(band, r, tile, key, ahead);
    }
  }
  if (last == 0) return;
  with_rows(last, [&]<std::size_t kRows>() {
    constexpr std::size_t kVectors = code_vectors_for(kRows);
    for (std::size_t key = 0; key < num_keys; key += kVectors * Simd::kLanes) {
      score_codes_block<Simd, kRows, kVectors>(band, full, tile, key, ahead);
    }
  });
}

// The sums of one row's softmax.
template <class Simd>
struct WeightSums {
  typename Simd::Float weights = Simd::set(0.0f);  // 2^(score - peak)
  typename Simd::Float scaled = Simd::set(0.0f);   // times the scales of the values
  typename Simd::Float largest = Simd::set(0.0f);  // of those

  FOREWORD_INLINE typename Simd::Float add(typename Simd::Float weight, typename Simd::Float value_scale) {
    const auto by_scale = weight * value_scale;
    weights = weights + weight;
    scaled = scaled + by_scale;
    largest = Simd::larger(by_scale, largest);
    return by_scale;
  }
};

// Scores of one row become weights times their values' scales, 0 behind the limit up to a whole vector.
template <class Simd, class Ahead>
FOREWORD_INLINE WeightSums<Simd> scaled_weights(float* scores, std::size_t limit, float row_peak,
                                                const float* value_scales, Ahead& ahead) {
  constexpr std::size_t kLanes = Simd::kLanes, kVectors = 4;
  const std::size_t whole = limit / kLanes * kLanes;
  const auto peak = Simd::set(row_peak);
  WeightSums<Simd> sums;
  std::size_t key = 0;
  for (; key + kVectors * kLanes <= whole; key += kVectors * kLanes) {
    ahead.step();
    typename Simd::Float weights[kVectors];
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) weights[v] = Simd::load(scores + key + v * kLanes) - peak;
    powers_of_two<Simd>(weights);
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      const std::size_t at = key + v * kLanes;
      Simd::store(scores + at, sums.add(weights[v], Simd::load(value_scales + at)));
    }
  }
  for (; key < whole; key += kLanes) {
    const auto weight = power_of_two<Simd>(Simd::load(scores + key) - peak);
    Simd::store(scores + key, sums.add(weight, Simd::load(value_scales + key)));
  }
  if (whole != limit) {
    const auto keep = [&](typename Simd::Float x) { return Simd::keep_first(limit - whole, x, Simd::set(0.0f)); };
    const auto weight = keep(power_of_two<Simd>(Simd::load(scores + whole) - peak));
    Simd::store(scores + whole, sums.add(weight, keep(Simd::load(value_scales + whole))));
  }
  return sums;
}

// Scores become weights times their values' scales, whose largest and sum are left in steps and inverse_steps.
template <class Simd, class Ahead>
void soften_codes(const RowBand& band, const float* value_scales, Ahead& ahead) {
  set_peaks<Simd>(band);
  for (std::size_t r = 0; r < band.rows; ++r) {
    float* const scores = band.scores + r * kAttentionTile;
    const std::size_t limit = static_cast<std::size_t>(band.limits[r]);
    const float peak = band.tile_peak[r];
    const auto sums = limit == kAttentionTile ? scaled_weights<Simd>(scores, kAttentionTile, peak, value_scales, ahead)
                                              : scaled_weights<Simd>(scores, limit, peak, value_scales, ahead);
    band.tile_sum[r] = Simd::sum(sums.weights);
    band.steps[r] = Simd::largest(sums.largest);
    band.inverse_steps[r] = Simd::sum(sums.scaled);
  }
}

// They become codes, 0 behind a row's limit, with each row's step. All of one kind at a time: a row's codes wait for
// its step, those of the row before need not.
template <class Simd>
void round_weights(const RowBand& band) {
  for (std::size_t r = 0; r < band.rows; r += Simd::kLanes) {
    const auto by_largest = Simd::load(band.steps + r) * Simd::set(1.0f / kMostWeight);
    const auto by_sum = Simd::load(band.inverse_steps + r) * Simd::set(1.0f / kMostWeights);
    // Of two, larger() takes the second where one is NaN, and the sum has every NaN there is.
    const auto step = Simd::larger(Simd::set(kLeastStep), Simd::larger(by_largest, by_sum));
    Simd::store(band.steps + r, step);
    Simd::store(band.inverse_steps + r, Simd::set(1.0f) / step);
  }
  for (std::size_t r = 0; r < band.rows; ++r) {
    const float* const weights = band.scores + r * kAttentionTile;
    std::int16_t* const codes = weight_codes(band, r);
    const auto factor = Simd::set(band.inverse_steps[r]);
    const std::size_t limit = static_cast<std::size_t>(band.limits[r]);
    const auto scaled = [&](std::size_t key) { return Simd::load(weights + key) * factor; };
    std::size_t key = 0;
#pragma GCC unroll 2
    for (; key + 2 * Simd::kLanes <= limit; key += 2 * Simd::kLanes) {
      Simd::store_codes(codes + key, scaled(key), scaled(key + Simd::kLanes));
    }
    for (; key < limit; key += Simd::kLanes) Simd::store_codes(codes + key, scaled(key));
    for (; key < kAttentionTile; ++key) codes[key] = 0;
  }
}

// Sums of codes, as values, to where they belong. Pointers are taken before the stores, as for the scores.
template <class Simd, std::size_t kRows, std::size_t kVectors>
FOREWORD_INLINE void store_code_values(const RowBand& band, std::size_t first, std::size_t d,
                                       const typename Simd::Int (&sums)[kRows][kVectors]) {
  const std::int32_t* const limits = band.limits + first;
  const float* const steps = band.steps + first;
  const std::size_t stride = band.padded_dim;
  if (band.end == TileEnd::kMerge) {
    const float *const old_shares = band.old_share + first, *const tile_shares = band.tile_share + first;
    float* const values = band.values + first * stride + d;
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) {
      if (limits[r] == 0) continue;
      const auto step = Simd::set(steps[r]), tile_share = Simd::set(tile_shares[r]), old = Simd::set(old_shares[r]);
#pragma GCC unroll 8
      for (std::size_t v = 0; v < kVectors; ++v) {
        float* const at = values + r * stride + v * Simd::kLanes;
        const auto tile = Simd::to_floats(sums[r][v]) * step;
        Simd::store(at, Simd::multiply_add(Simd::load(at), old, tile * tile_share));
      }
    }
    return;
  }
  float* const values = (band.end == TileEnd::kKeep ? band.tile_values : band.values) + first * stride + d;
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
    if (limits[r] == 0) continue;
    const auto step = Simd::set(steps[r]);
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      Simd::store(values + r * stride + v * Simd::kLanes, Simd::to_floats(sums[r][v]) * step);
    }
  }
}

// Weighted values of rows [first, first + kRows), kVectors vectors from dimension d on. Keys that only some of the rows
// see have codes of 0 for the others.
template <class Simd, std::size_t kRows, std::size_t kVectors, class RowOf, class Ahead>
FOREWORD_INLINE void value_codes_rows(const RowBand& band, std::size_t first, std::size_t d, RowOf row_of,
                                      Ahead& ahead) {
  const std::int32_t* const limits = band.limits + first;
  const std::size_t count = (largest_limit(limits, kRows) + 1) / 2;
  if (count == 0) return;
  const std::int16_t* const codes = weight_codes(band, first);
  typename Simd::Int sums[kRows][kVectors];
  sum_pairs<Simd, kRows, kVectors>(
      count, [&](std::size_t i, std::size_t r) { return Simd::set_pair(codes + r * kCodesStride + 2 * i); },
      [&](std::size_t i, std::size_t v) { return Simd::load_pairs(row_of(i) + v * 2 * Simd::kLanes); }, ahead, sums);
  store_code_values<Simd, kRows, kVectors>(band, first, d, sums);
}

// Values of the whole tile; panel_of(d) gives the row function of the dimensions from d on.
template <class Simd, std::size_t kWidth, class PanelOf, class Ahead>
FOREWORD_INLINE void value_codes(const RowBand& band, PanelOf panel_of, Ahead& ahead) {
  constexpr std::size_t kVectors = kWidth / Simd::kLanes;
  const std::size_t last = band.rows % kRowGroup, full = band.rows - last;
  for (std::size_t d = 0; d < band.padded_dim; d += kWidth) {
    const auto row_of = panel_of(d);
    const auto part_of = [&](std::size_t part) { return [&, part](std::size_t i) { return row_of(i) + 2 * part; }; };
    for (std::size_t r = 0; r < full; r += kRowGroup) {
      for (std::size_t part = 0; part < kWidth; part += 2 * Simd::kLanes) {
        value_codes_rows<Simd, kRowGroup, 2>(band, r, d + part, part_of(part), ahead);
      }
    }
    if (last == 0) continue;
    with_rows(last, [&]<std::size_t kRows>() {
      constexpr std::size_t kStep = code_vectors_for(kRows) < kVectors ? code_vectors_for(kRows) : kVectors;
      for (std::size_t part = 0; part < kWidth; part += kStep * Simd::kLanes) {
        value_codes_rows<Simd, kRows, kStep>(band, full, d + part, part_of(part), ahead);
      }
    });
  }
}

// Weights of a band and its sums, then its values, merged into those of the tiles before as `band.end` says.
template <class Simd, std::size_t kWidth, class Code, class PanelOf, class Ahead>
FOREWORD_INLINE void attend_codes_band(const RowBand& band, const TileCodes<Simd, Code>& tile,
                                       const float* value_scales, std::size_t num_keys, PanelOf panel_of,
                                       TileAhead<Ahead>& ahead) {
  score_codes<Simd>(band, tile, num_keys, ahead.values);
  soften_codes<Simd>(band, value_scales, ahead.keys);
  round_weights<Simd>(band);
  take_in_sums<Simd>(band);
  value_codes<Simd, kWidth>(band, panel_of, ahead.keys);
}

}  // namespace
}  // namespace foreword
