// Attention of one unit: its tiles in order, each packed where that pays; those of floats. Included from the one .cpp
// of an instruction set.
#pragma once

#include "attention_code_unit.h"

namespace foreword {
namespace {

// Queries of one KV head, scaled, in the order score_block reads them; its rows begin at `first`.
inline void pack_queries(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head,
                         std::size_t first, const UnitWork& work) {
  const float scale = problem.args.scale * kLog2E;
  for (std::size_t r = 0; r < work.head_rows; ++r) {
    const UnitRow row(problem, unit, kv_head, r, work.head_rows);
    float* const packed = work.queries + (first + row.group_begin) * work.head_dim + (r - row.group_begin);
    for (std::size_t d = 0; d < work.head_dim; ++d) packed[d * row.group_rows] = row.query[d] * scale;
  }
}

// Keys of the tile that the unit's i-th token sees.
inline std::size_t keys_seen(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t tile,
                             std::size_t i) {
  const std::int64_t start = static_cast<std::int64_t>(tile * kAttentionTile);
  const std::int64_t seen = unit_token(problem, unit, i).position + 1 - start;
  if (seen <= 0) return 0;
  return seen < static_cast<std::int64_t>(kAttentionTile) ? static_cast<std::size_t>(seen) : kAttentionTile;
}

inline std::size_t most_keys_seen(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t tile) {
  std::size_t most = 0;
  for (std::size_t i = 0; i < unit.num_tokens; ++i) {
    const std::size_t seen = keys_seen(problem, unit, tile, i);
    if (seen > most) most = seen;
  }
  return most;
}

// Sets how many keys of the tile each row sees.
inline void set_limits(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t tile,
                       const UnitWork& work) {
  for (std::size_t i = 0; i < unit.num_tokens; ++i) {
    const auto limit = static_cast<std::int32_t>(keys_seen(problem, unit, tile, i));
    for (std::size_t r = i * problem.group; r < work.rows; r += work.head_rows) {
      for (std::size_t g = 0; g < problem.group; ++g) work.limits[r + g] = limit;
    }
  }
}

// Points at the tile's keys where they lie: vectors are whole.
template <class Simd, class T>
void point_at_keys(const TileBlocks<T>& blocks, std::size_t num_keys, TileKeys<Simd, T>& tile) {
  tile.key_stride = blocks.block_size;
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    for (std::size_t i = 0; i < run; i += Simd::kLanes) {
      tile.key_vectors[(key + i) / Simd::kLanes] = blocks.keys + place.block + place.offset + i;
    }
  });
  repeat_last_vector<Simd>(num_keys, tile.key_vectors);
}

// Copies the tile's keys into panels [D, kPanel] of f32, whole lines where a panel lies in one block. What vectors hold
// behind the last key is copied and not looked at.
template <class Simd, class T>
void pack_keys(const TileBlocks<T>& blocks, std::size_t num_keys, float* packed) {
  using Place = typename TileBlocks<T>::Place;
  const std::size_t head_dim = blocks.head_dim, stride = blocks.block_size;
  const auto panel_of = [&](std::size_t key) { return packed + key / kPanel * kPanel * head_dim + key % kPanel; };
  const auto copy_vectors = [&]<std::size_t kWidth>(std::size_t key, Place first) {
    float* const panel = panel_of(key);
    const T* const source = blocks.keys + first.block + first.offset;
    for (std::size_t d = 0; d < head_dim; ++d) {
#pragma GCC unroll 4
      for (std::size_t at = 0; at < kWidth; at += Simd::kLanes) {
        Simd::store(panel + d * kPanel + at, Simd::load(source + d * stride + at));
      }
    }
  };
  const auto copy_one = [&](std::size_t key, Place first) {
    float* const panel = panel_of(key);
    const T* const source = blocks.keys + first.block + first.offset;
    for (std::size_t d = 0; d < head_dim; ++d) panel[d * kPanel] = Simd::to_float(source[d * stride]);
  };
  for_panel_parts<Simd>(blocks, num_keys, copy_vectors, copy_one);
}

// Copies the tile's values into panels [kAttentionTile, kPanel] of f32; dimensions behind the last are zero. One panel
// after another: written in turns they would be as many streams, lines of one set of the cache each time.
template <class Simd, class T>
void pack_values(const TileBlocks<T>& blocks, std::size_t num_keys, std::size_t padded_dim, float* packed) {
  const std::size_t head_dim = blocks.head_dim;
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    const T* const rows = blocks.values + place.block + place.offset * head_dim;
    for (std::size_t panel = 0; panel < padded_dim; panel += kPanel) {
      float* const target = packed + panel * kAttentionTile + key * kPanel;
      if (panel + kPanel <= head_dim) {
        for (std::size_t i = 0; i < run; ++i) {
#pragma GCC unroll 4
          for (std::size_t d = 0; d < kPanel; d += Simd::kLanes) {
            Simd::store(target + i * kPanel + d, Simd::load(rows + i * head_dim + panel + d));
          }
        }
        continue;
      }
      for (std::size_t i = 0; i < run; ++i) {
        for (std::size_t d = 0; d < kPanel; ++d) {
          target[i * kPanel + d] = panel + d < head_dim ? Simd::to_float(rows[i * head_dim + panel + d]) : 0.0f;
        }
      }
    }
  });
}

// Few rows: reads the tile where it lies, one KV head after another, its values asked for during the scores, the next
// tile's keys during the values.
template <class Simd, class T>
void attend_in_place(const TileBlocks<T>& blocks, std::size_t num_keys, const TileBlocks<T>& next,
                     std::size_t num_next_keys, const UnitWork& work, const RowBand& band) {
  // A step of eight turns uses up to eight dimensions of four vectors: as much is asked for.
  constexpr std::size_t kTurns = 8;
  const std::size_t rows = work.head_rows, num_heads = band.rows / rows;
  TileAhead<LinesAhead<kTurns, kTurns * 4 * Simd::kLanes * sizeof(T) / kCacheLine>> ahead;
  add_values_ahead(blocks, num_heads, num_keys, ahead.values);
  add_keys_ahead(next, num_heads, num_next_keys, ahead.keys);
  for (std::size_t h = 0; h < num_heads; ++h) {
    TileKeys<Simd, T> tile;
    point_at_keys<Simd>(blocks.head(h), num_keys, tile);
    score_band<Simd, T>(band.part(h * rows, rows), tile, num_keys, ahead.values);
  }
  soften_band<Simd>(band);
  take_in_sums<Simd>(band);
  const T* rows_of_keys[kAttentionTile];  // of the first head; those of the others lie equally far behind
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    for (std::size_t i = 0; i < run; ++i) {
      rows_of_keys[key + i] = blocks.values + place.block + (place.offset + i) * blocks.head_dim;
    }
  });
  for (std::size_t h = 0; h < num_heads; ++h) {
    const auto panel_of = [&](std::size_t d) {
      return [&, at = h * blocks.head_size + d](std::size_t key) { return rows_of_keys[key] + at; };
    };
    if (band.padded_dim % (2 * kPanel) == 0) {
      value_band<Simd, 2 * kPanel>(band.part(h * rows, rows), panel_of, ahead.keys);
    } else {
      value_band<Simd, kPanel>(band.part(h * rows, rows), panel_of, ahead.keys);
    }
  }
}

// Many rows: copies the tile into panels first; done(first row, band) after each band. The next tile is asked for.
template <class Simd, class T, class Done>
void attend_packed(const TileBlocks<T>& blocks, std::size_t num_keys, const TileBlocks<T>& next,
                   std::size_t num_next_keys, const UnitWork& work, TileEnd end, Done done) {
  pack_keys<Simd>(blocks, num_keys, work.packed_keys);
  pack_values<Simd>(blocks, num_keys, work.padded_dim, work.packed_values);
  TileKeys<Simd, float> tile;
  tile.key_stride = kPanel;
  for (std::size_t v = 0; v < kAttentionTile / Simd::kLanes; ++v) {
    const std::size_t key = v * Simd::kLanes;
    tile.key_vectors[v] = work.packed_keys + key / kPanel * kPanel * work.head_dim + key % kPanel;
  }
  TileAhead<LinesAhead<64, 8>> ahead;
  add_values_ahead(next, 1, num_next_keys, ahead.values);
  add_keys_ahead(next, 1, num_next_keys, ahead.keys);
  for (std::size_t first = 0; first < work.rows; first += kBandRows) {
    const RowBand band(work, first, end);
    const auto panel_of = [&](std::size_t d) {
      const float* const panel = work.packed_values + d * kAttentionTile;
      return [panel](std::size_t key) { return panel + key * kPanel; };
    };
    attend_band<Simd, kPanel>(band, tile, num_keys, panel_of, ahead);
    done(first, band);
  }
}

// Writes values / sum to the D dimensions of one head.
template <class Simd>
FOREWORD_INLINE void write_row(const float* values, float sum, std::size_t head_dim, float* out) {
  const auto divisor = Simd::set(sum);
  const std::size_t whole = head_dim / Simd::kLanes * Simd::kLanes;
  for (std::size_t d = 0; d < whole; d += Simd::kLanes) Simd::store(out + d, Simd::load(values + d) / divisor);
  for (std::size_t d = whole; d < head_dim; ++d) out[d] = values[d] / sum;
}

inline float* partial_row(const AttentionProblem& problem, const AttentionToken& token, std::size_t tile,
                          std::size_t head) {
  return problem.partials + (token.partial + head * token.num_tiles() + tile) * problem.partial_floats;
}

// Calls body(row, token, head) for the rows of a band, from `first` on, whose tokens see tile `tile` or one behind it.
template <class Body>
FOREWORD_INLINE void for_rows(const AttentionProblem& problem, const AttentionUnit& unit, const AttentionItem& item,
                              std::size_t tile, std::size_t first, std::size_t rows, Body body) {
  const std::size_t head_rows = unit.num_tokens * problem.group;
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t kv_head = item.head_begin + (first + r) / head_rows, of_head = (first + r) % head_rows;
    const AttentionToken& token = unit_token(problem, unit, of_head / problem.group);
    if (tile < token.num_tiles()) body(r, token, kv_head * problem.group + of_head % problem.group);
  }
}

// What a row's values, peak and sum are kept as, in its token's partial result of a tile.
template <class Simd>
FOREWORD_INLINE void store_partial(const float* values, float peak, float sum, std::size_t padded_dim, float* to) {
  for (std::size_t d = 0; d < padded_dim; d += Simd::kLanes) Simd::store(to + d, Simd::load(values + d));
  to[padded_dim] = peak;
  to[padded_dim + 1] = sum;
}

// Keeps this tile's result of every row of the band that sees some of it.
template <class Simd>
void store_partials(const AttentionProblem& problem, const AttentionUnit& unit, const AttentionItem& item,
                    std::size_t tile, std::size_t first, const RowBand& band) {
  for_rows(problem, unit, item, tile, first, band.rows,
           [&](std::size_t r, const AttentionToken& token, std::size_t head) {
             store_partial<Simd>(band.tile_values + r * band.padded_dim, band.tile_peak[r], band.tile_sum[r],
                                 band.padded_dim, partial_row(problem, token, tile, head));
           });
}

// The rows' sums over the tiles before the unit.
template <class Simd>
void load_sums(const AttentionProblem& problem, const AttentionUnit& unit, const AttentionItem& item,
               const UnitWork& work) {
  for_rows(problem, unit, item, unit.tile_begin, 0, work.rows,
           [&](std::size_t r, const AttentionToken& token, std::size_t head) {
             const float* const from = partial_row(problem, token, 0, head);
             float* const to = work.values + r * work.padded_dim;
             for (std::size_t d = 0; d < work.padded_dim; d += Simd::kLanes) Simd::store(to + d, Simd::load(from + d));
             work.peak[r] = from[work.padded_dim];
             work.sum[r] = from[work.padded_dim + 1];
           });
}

// Writes out what the unit completes, and keeps the sums of the other rows for the tiles behind it.
template <class Simd>
void keep_sums(const AttentionProblem& problem, const AttentionUnit& unit, const AttentionItem& item,
               const UnitWork& work) {
  for_rows(problem, unit, item, unit.tile_begin, 0, work.rows,
           [&](std::size_t r, const AttentionToken& token, std::size_t head) {
             const float* const values = work.values + r * work.padded_dim;
             if (unit.tile_end >= token.num_tiles()) {
               float* const out = problem.args.out + static_cast<std::size_t>(token.token) * problem.args.out_stride;
               write_row<Simd>(values, work.sum[r], work.head_dim, out + head * work.head_dim);
             } else {
               store_partial<Simd>(values, work.peak[r], work.sum[r], work.padded_dim,
                                   partial_row(problem, token, 0, head));
             }
           });
}

template <class Simd, class T>
void attend_unit(const AttentionProblem& problem, const AttentionUnit& unit, const AttentionItem& item, bool goes_on,
                 float* scratch) {
  UnitWork work(problem, unit, item, scratch);
  for (std::size_t h = 0; h < item.num_heads(); ++h) {
    if constexpr (kIsCode<T>) {
      pack_query_codes(problem, unit, item.head_begin + h, h * work.head_rows, work);
    } else {
      pack_queries(problem, unit, item.head_begin + h, h * work.head_rows, work);
    }
  }
  if (goes_on && unit.tile_begin > 0) load_sums<Simd>(problem, unit, item, work);
  const auto keys_of = [&](std::size_t tile) { return tile < unit.tile_end ? most_keys_seen(problem, unit, tile) : 0; };
  std::size_t num_keys = keys_of(unit.tile_begin);
  for (std::size_t tile = unit.tile_begin, num_next_keys; tile < unit.tile_end; ++tile, num_keys = num_next_keys) {
    num_next_keys = keys_of(tile + 1);
    set_limits(problem, unit, tile, work);
    const TileBlocks<T> blocks(problem, unit, item.head_begin, tile), next(problem, unit, item.head_begin, tile + 1);
    // Every row sees some of tile 0.
    const TileEnd end = !goes_on ? TileEnd::kKeep : tile == 0 ? TileEnd::kFirst : TileEnd::kMerge;
    const auto done = [&](std::size_t first, const RowBand& band) {
      if (!goes_on) store_partials<Simd>(problem, unit, item, tile, first, band);
    };
    if (unit.in_place) {
      const RowBand all(work, 0, end);
      if constexpr (kIsCode<T>) {
        attend_codes_in_place<Simd>(blocks, num_keys, next, num_next_keys, work, all);
      } else {
        attend_in_place<Simd>(blocks, num_keys, next, num_next_keys, work, all);
      }
      done(0, all);
    } else if constexpr (kIsCode<T>) {
      attend_codes_packed<Simd>(blocks, num_keys, next, num_next_keys, work, end, done);
    } else {
      attend_packed<Simd>(blocks, num_keys, next, num_next_keys, work, end, done);
    }
  }
  if (goes_on) keep_sums<Simd>(problem, unit, item, work);
}

template <class Simd>
void attend(const AttentionProblem& problem, const AttentionUnit& unit, const AttentionItem& item, bool goes_on,
            float* scratch) {
  switch (problem.cache.dtype) {
    case KvDtype::kF32:
      return attend_unit<Simd, float>(problem, unit, item, goes_on, scratch);
    case KvDtype::kF16:
      return attend_unit<Simd, std::uint16_t>(problem, unit, item, goes_on, scratch);
    case KvDtype::kInt8:
      return attend_unit<Simd, std::int8_t>(problem, unit, item, goes_on, scratch);
    case KvDtype::kInt16:
      return attend_unit<Simd, std::int16_t>(problem, unit, item, goes_on, scratch);
  }
}

// Partial results: the arithmetic of merge_sums and value_rows, a row at a time, into the row of tile 0.
template <class Simd>
void merge_partials(const AttentionProblem& problem, const AttentionToken& token, std::size_t kv_head,
                    std::size_t begin, std::size_t end) {
  for (std::size_t g = 0; g < problem.group; ++g) {
    const std::size_t head = kv_head * problem.group + g;
    float* const values = partial_row(problem, token, 0, head);
    auto peak = Simd::set(values[problem.padded_dim]), sum = Simd::set(values[problem.padded_dim + 1]);
    for (std::size_t tile = begin; tile < end; ++tile) {
      const float* const row = partial_row(problem, token, tile, head);
      const auto tile_peak = Simd::set(row[problem.padded_dim]), tile_sum = Simd::set(row[problem.padded_dim + 1]);
      const auto new_peak = Simd::larger(peak, tile_peak);
      const auto old_share = power_of_two<Simd>(peak - new_peak), tile_share = power_of_two<Simd>(tile_peak - new_peak);
      peak = new_peak;
      sum = Simd::multiply_add(sum, old_share, tile_sum * tile_share);
      for (std::size_t d = 0; d < problem.padded_dim; d += Simd::kLanes) {
        const auto share = Simd::load(row + d) * tile_share;
        Simd::store(values + d, Simd::multiply_add(Simd::load(values + d), old_share, share));
      }
    }
    if (end < token.num_tiles()) {
      values[problem.padded_dim] = peak[0];
      values[problem.padded_dim + 1] = sum[0];
      continue;
    }
    const std::size_t out = static_cast<std::size_t>(token.token) * problem.args.out_stride;
    write_row<Simd>(values, sum[0], problem.cache.head_dim, problem.args.out + out + head * problem.cache.head_dim);
  }
}

}  // namespace
}  // namespace foreword
