// One tile of keys for a band of a unit's rows: few enough that their scores, weights and sums stay in the nearest
// cache from the first product to the last. Included by attention_blocks.h and attention_codes.h.
#pragma once

#include "attention_kernel.h"

namespace foreword {
namespace {

// An item's rows, those of a KV head beside one another; carved out of the thread's scratch.
struct UnitWork {
  std::size_t rows, head_rows, head_dim, padded_dim;                  // head_rows: of one KV head
  float* queries;                                                     // groups of up to kRowGroup rows, see RowBand
  float* values;                                                      // [rows, padded_dim] of the tiles so far
  float *tile_peak, *tile_sum, *peak, *sum, *old_share, *tile_share;  // [rows], padded to whole vectors
  std::int32_t* limits;                                               // [rows] keys of this tile that the row sees
  float* scores;                                                      // [kBandRows, kAttentionTile]
  float* tile_values;                                                 // [kBandRows, padded_dim]
  float* packed_keys;                                                 // panels [D, kPanel]
  float* packed_values;                                               // panels [kAttentionTile, kPanel]
  float *key_scales, *value_scales;                                   // [kAttentionTile], of codes
  float *row_scales, *steps, *inverse_steps;                          // [rows] of codes, see attention_codes.h

  UnitWork(const AttentionProblem& problem, const AttentionUnit& unit, const AttentionItem& item, float* scratch) {
    head_rows = unit.num_tokens * problem.group;
    rows = head_rows * item.num_heads();
    head_dim = problem.cache.head_dim;
    padded_dim = problem.padded_dim;
    const std::size_t padded_rows = (rows + kPanel - 1) / kPanel * kPanel;
    const auto take = [&](std::size_t size) {
      float* const part = scratch;
      scratch += size;
      return part;
    };
    scores = take(kBandRows * kAttentionTile);
    tile_values = take(kBandRows * padded_dim);
    values = take(rows * padded_dim);
    queries = take(padded_rows * head_dim);
    for (float** part : {&tile_peak, &tile_sum, &peak, &sum, &old_share, &tile_share}) *part = take(padded_rows);
    limits = reinterpret_cast<std::int32_t*>(take(padded_rows));
    packed_keys = take(kAttentionTile * head_dim);
    packed_values = take(kAttentionTile * padded_dim);
    for (float** part : {&key_scales, &value_scales}) *part = take(kAttentionTile);
    for (float** part : {&row_scales, &steps, &inverse_steps}) *part = take(padded_rows);
    for (std::size_t i = 0; i < 6 * padded_rows; ++i) tile_peak[i] = 0.0f;  // the padding is computed with
  }
};

// What becomes of a tile's weighted values.
enum class TileEnd {
  kKeep,   // they stay in tile_values, for a partial result
  kFirst,  // they are the row's values
  kMerge,  // they are merged into the row's values
};

// Rows [first, first + rows) of an item.
struct RowBand {
  std::size_t rows, head_dim, padded_dim;
  TileEnd end;
  const float* queries;             // groups of up to kRowGroup rows, each [D, rows of the group], scaled
  const std::int16_t* query_codes;  // or as codes, each group [D/2, rows of the group, 2]
  const std::int32_t* limits;
  float *scores, *tile_values, *values;
  float *tile_peak, *tile_sum, *peak, *sum, *old_share, *tile_share, *row_scales, *steps, *inverse_steps;

  RowBand(const UnitWork& work, std::size_t first, TileEnd tile_end)
      : rows(work.rows - first < kBandRows ? work.rows - first : kBandRows),
        head_dim(work.head_dim),
        padded_dim(work.padded_dim),
        end(tile_end),
        queries(work.queries + first * work.head_dim),
        query_codes(reinterpret_cast<const std::int16_t*>(work.queries) + first * work.head_dim),
        limits(work.limits + first),
        scores(work.scores),
        tile_values(work.tile_values),
        values(work.values + first * work.padded_dim),
        tile_peak(work.tile_peak + first),
        tile_sum(work.tile_sum + first),
        peak(work.peak + first),
        sum(work.sum + first),
        old_share(work.old_share + first),
        tile_share(work.tile_share + first),
        row_scales(work.row_scales + first),
        steps(work.steps + first),
        inverse_steps(work.inverse_steps + first) {}

  // Rows [first, first + count) of these, for what treats each row alone: they need not begin at a whole vector.
  FOREWORD_INLINE RowBand part(std::size_t first, std::size_t count) const {
    RowBand band = *this;
    band.rows = count;
    band.queries += first * head_dim;
    band.query_codes += first * head_dim;
    band.limits += first;
    band.scores += first * kAttentionTile;
    band.tile_values += first * padded_dim;
    band.values += first * padded_dim;
    for (float** row : {&band.tile_peak, &band.tile_sum, &band.peak, &band.sum, &band.old_share, &band.tile_share,
                        &band.row_scales, &band.steps, &band.inverse_steps}) {
      *row += first;
    }
    return band;
  }
};

// Scores of every row for the first `num_keys` keys; what lies behind a row's limit is not looked at later.
template <class Simd, class T, class Ahead>
void score_band(const RowBand& band, const TileKeys<Simd, T>& keys, std::size_t num_keys, Ahead& ahead) {
  const std::size_t last = band.rows % kRowGroup, full = band.rows - last;
  for (std::size_t key = 0; key < num_keys; key += 2 * Simd::kLanes) {
    for (std::size_t r = 0; r < full; r += kRowGroup) {
      if (largest_limit(band.limits + r, kRowGroup) <= key) continue;
      score_block<Simd, T, kRowGroup, 2>(band.queries + r * band.head_dim, keys.key_vectors + key / Simd::kLanes,
                                         keys.key_stride, band.head_dim, band.scores + r * kAttentionTile + key, ahead);
    }
  }
  if (last == 0) return;
  with_rows(last, [&]<std::size_t kRows>() {
    constexpr std::size_t kVectors = vectors_for(kRows);
    for (std::size_t key = 0; key < num_keys; key += kVectors * Simd::kLanes) {
      score_block<Simd, T, kRows, kVectors>(band.queries + full * band.head_dim, keys.key_vectors + key / Simd::kLanes,
                                            keys.key_stride, band.head_dim, band.scores + full * kAttentionTile + key,
                                            ahead);
    }
  });
}

template <class Simd>
FOREWORD_INLINE float peak_of(const float* scores, std::size_t limit) {
  const std::size_t whole = limit / Simd::kLanes * Simd::kLanes;
  auto peaks = Simd::set(-__builtin_inff());
  for (std::size_t key = 0; key < whole; key += Simd::kLanes) peaks = Simd::larger(Simd::load(scores + key), peaks);
  if (whole != limit) {
    const auto rest = Simd::keep_first(limit - whole, Simd::load(scores + whole), Simd::set(-__builtin_inff()));
    peaks = Simd::larger(rest, peaks);
  }
  return Simd::largest(peaks);
}

// Scores of one row become weights; returns their sum.
template <class Simd>
FOREWORD_INLINE float soften_row(float* scores, std::size_t limit, float row_peak) {
  const std::size_t whole = limit / Simd::kLanes * Simd::kLanes;
  const auto peak = Simd::set(row_peak);
  auto sums = Simd::set(0.0f);
  constexpr std::size_t kStep = 4;
  std::size_t key = 0;
  for (; key + kStep * Simd::kLanes <= whole; key += kStep * Simd::kLanes) {
    typename Simd::Float weights[kStep];
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kStep; ++v) weights[v] = Simd::load(scores + key + v * Simd::kLanes) - peak;
    powers_of_two<Simd>(weights);
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kStep; ++v) {
      Simd::store(scores + key + v * Simd::kLanes, weights[v]);
      sums = sums + weights[v];
    }
  }
  for (; key < whole; key += Simd::kLanes) {
    const auto weight = power_of_two<Simd>(Simd::load(scores + key) - peak);
    Simd::store(scores + key, weight);
    sums = sums + weight;
  }
  if (whole != limit) {
    const auto weight = power_of_two<Simd>(Simd::load(scores + whole) - peak);
    Simd::store(scores + whole, weight);
    sums = sums + Simd::keep_first(limit - whole, weight, Simd::set(0.0f));
  }
  return Simd::sum(sums);
}

// The peaks of all rows before the first weight: a row's weights wait for its peak, those of the row before need not.
template <class Simd>
void set_peaks(const RowBand& band) {
  for (std::size_t r = 0; r < band.rows; ++r) {
    const float* const scores = band.scores + r * kAttentionTile;
    const std::size_t limit = static_cast<std::size_t>(band.limits[r]);
    band.tile_peak[r] = limit == kAttentionTile ? peak_of<Simd>(scores, kAttentionTile) : peak_of<Simd>(scores, limit);
  }
}

template <class Simd>
void soften_band(const RowBand& band) {
  set_peaks<Simd>(band);
  for (std::size_t r = 0; r < band.rows; ++r) {
    float* const scores = band.scores + r * kAttentionTile;
    const std::size_t limit = static_cast<std::size_t>(band.limits[r]);
    band.tile_sum[r] = limit == kAttentionTile ? soften_row<Simd>(scores, kAttentionTile, band.tile_peak[r])
                                               : soften_row<Simd>(scores, limit, band.tile_peak[r]);
  }
}

// The band's peaks and sums take in the tile's; old_share and tile_share are what its values are merged by.
template <class Simd>
void merge_sums(const RowBand& band) {
  for (std::size_t r = 0; r < band.rows; r += Simd::kLanes) {
    const auto peak = Simd::load(band.peak + r), tile_peak = Simd::load(band.tile_peak + r);
    const auto new_peak = Simd::larger(peak, tile_peak);
    const auto old_share = power_of_two<Simd>(peak - new_peak), tile_share = power_of_two<Simd>(tile_peak - new_peak);
    Simd::store(band.peak + r, new_peak);
    Simd::store(band.old_share + r, old_share);
    Simd::store(band.tile_share + r, tile_share);
    const auto tile_sum = Simd::load(band.tile_sum + r) * tile_share;
    Simd::store(band.sum + r, Simd::multiply_add(Simd::load(band.sum + r), old_share, tile_sum));
  }
}

// The band's sums after this tile, as `band.end` says.
template <class Simd>
void take_in_sums(const RowBand& band) {
  if (band.end == TileEnd::kMerge) {
    merge_sums<Simd>(band);
  } else if (band.end == TileEnd::kFirst) {
    for (std::size_t r = 0; r < band.rows; ++r) {
      band.peak[r] = band.tile_peak[r];
      band.sum[r] = band.tile_sum[r];
    }
  }
}

// Weighted values of rows [first, first + kRows), kVectors vectors from dimension d on. Where all of them see the same
// keys the sums go from registers to where they belong; else the keys that all see go together, the others row by row.
template <class Simd, std::size_t kRows, std::size_t kVectors, class RowOf, class Ahead>
FOREWORD_INLINE void value_rows(const RowBand& band, std::size_t first, std::size_t d, RowOf row_of, Ahead& ahead) {
  const std::int32_t* const limits = band.limits + first;
  const float* const weights = band.scores + first * kAttentionTile;
  float* const values = band.values + first * band.padded_dim + d;
  float* const kept = band.tile_values + first * band.padded_dim + d;
  const std::size_t common = smallest_limit(limits, kRows);
  const bool equal = common == largest_limit(limits, kRows);
  if (equal && common == 0) return;
  typename Simd::Float sums[kRows][kVectors];
  sum_values<Simd, kRows, kVectors>(weights, row_of, common, ahead, sums);
  if (equal && band.end == TileEnd::kMerge) {
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto old_share = Simd::set(band.old_share[first + r]), tile_share = Simd::set(band.tile_share[first + r]);
#pragma GCC unroll 8
      for (std::size_t v = 0; v < kVectors; ++v) {
        float* const out = values + r * band.padded_dim + v * Simd::kLanes;
        Simd::store(out, Simd::multiply_add(Simd::load(out), old_share, sums[r][v] * tile_share));
      }
    }
    return;
  }
  float* const out = band.end == TileEnd::kFirst ? values : kept;
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      Simd::store(out + r * band.padded_dim + v * Simd::kLanes, sums[r][v]);
    }
  }
  if (equal) return;
  for (std::size_t r = 0; r < kRows; ++r) {
    const std::size_t limit = static_cast<std::size_t>(limits[r]);
    if (limit == 0) continue;
    float* const row = out + r * band.padded_dim;
    add_values<Simd, kVectors>(weights + r * kAttentionTile, row_of, common, limit, row);
    if (band.end != TileEnd::kMerge) continue;
    const auto old_share = Simd::set(band.old_share[first + r]), tile_share = Simd::set(band.tile_share[first + r]);
    for (std::size_t v = 0; v < kVectors; ++v) {
      float* const value = values + r * band.padded_dim + v * Simd::kLanes;
      const auto tile = Simd::load(row + v * Simd::kLanes) * tile_share;
      Simd::store(value, Simd::multiply_add(Simd::load(value), old_share, tile));
    }
  }
}

// Values of the whole tile; panel_of(d) gives the row function of the dimensions from d on.
template <class Simd, std::size_t kWidth, class PanelOf, class Ahead>
FOREWORD_INLINE void value_band(const RowBand& band, PanelOf panel_of, Ahead& ahead) {
  constexpr std::size_t kVectors = kWidth / Simd::kLanes;
  const std::size_t last = band.rows % kRowGroup, full = band.rows - last;
  for (std::size_t d = 0; d < band.padded_dim; d += kWidth) {
    const auto row_of = panel_of(d);
    for (std::size_t r = 0; r < full; r += kRowGroup) {
      for (std::size_t part = 0; part < kWidth; part += 2 * Simd::kLanes) {
        value_rows<Simd, kRowGroup, 2>(band, r, d + part, [&](std::size_t key) { return row_of(key) + part; }, ahead);
      }
    }
    if (last == 0) continue;
    with_rows(last, [&]<std::size_t kRows>() {
      constexpr std::size_t kStep = vectors_for(kRows) < kVectors ? vectors_for(kRows) : kVectors;
      for (std::size_t part = 0; part < kWidth; part += kStep * Simd::kLanes) {
        value_rows<Simd, kRows, kStep>(
            band, full, d + part, [&](std::size_t key) { return row_of(key) + part; }, ahead);
      }
    });
  }
}

// What is asked for while a tile is worked on.
template <class Ahead>
struct TileAhead {
  Ahead values;  // during the scores
  Ahead keys;    // of the next tile, during the values
};

// Weights of a band and its sums, then its values, merged into those of the tiles before as `band.end` says.
template <class Simd, std::size_t kWidth, class T, class PanelOf, class Ahead>
FOREWORD_INLINE void attend_band(const RowBand& band, const TileKeys<Simd, T>& keys, std::size_t num_keys,
                                 PanelOf panel_of, TileAhead<Ahead>& ahead) {
  score_band<Simd, T>(band, keys, num_keys, ahead.values);
  soften_band<Simd>(band);
  take_in_sums<Simd>(band);
  value_band<Simd, kWidth>(band, panel_of, ahead.keys);
}

}  // namespace
}  // namespace foreword
