// Attention of one unit: its tiles in order, each packed where that pays; those of floats. Included from the one .cpp
// of an instruction set.
#pragma once

#include "attention_code_unit.h"

namespace foreword {
namespace {

// Queries of the unit, scaled, in the order score_block reads them.
inline void pack_queries(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head,
                         const UnitWork& work) {
  const float scale = problem.args.scale * kLog2E;
  for (std::size_t r = 0; r < work.rows; ++r) {
    const UnitRow row(problem, unit, kv_head, r, work.rows);
    float* const packed = work.queries + row.group_begin * work.head_dim + (r - row.group_begin);
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
    for (std::size_t g = 0; g < problem.group; ++g) work.limits[i * problem.group + g] = limit;
  }
}

// Points at the tile where it lies: vectors of keys and of values are whole.
template <class Simd, class T>
void point_at_tile(const TileBlocks<T>& blocks, std::size_t num_keys, TileKeys<Simd, T>& tile) {
  tile.key_stride = blocks.block_size;
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    for (std::size_t i = 0; i < run; i += Simd::kLanes) {
      tile.key_vectors[(key + i) / Simd::kLanes] = blocks.keys + place.block + place.offset + i;
    }
    for (std::size_t i = 0; i < run; ++i) {
      tile.value_rows[key + i] = blocks.values + place.block + (place.offset + i) * blocks.head_dim;
    }
  });
  // score_block works on up to four vectors: let those behind the last repeat it.
  const std::size_t used = (num_keys + Simd::kLanes - 1) / Simd::kLanes;
  for (std::size_t v = used; v < (used + 3) / 4 * 4; ++v) tile.key_vectors[v] = tile.key_vectors[used - 1];
}

// Copies the tile's keys into panels [D, kPanel] of f32. Vectors that lie in one block are read whole; what they hold
// behind the last key is copied and not looked at.
template <class Simd, class T>
void pack_keys(const TileBlocks<T>& blocks, std::size_t num_keys, float* packed) {
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    const T* const source = blocks.keys + place.block + place.offset;
    const std::size_t readable = blocks.block_size - place.offset;
    for (std::size_t i = 0; i < run;) {
      const std::size_t column = (key + i) % kPanel;
      float* const panel = packed + (key + i) / kPanel * kPanel * blocks.head_dim + column;
      if (column % Simd::kLanes == 0 && i + Simd::kLanes <= readable) {
        for (std::size_t d = 0; d < blocks.head_dim; ++d) {
          Simd::store(panel + d * kPanel, Simd::load(source + d * blocks.block_size + i));
        }
        i += Simd::kLanes;
      } else {
        for (std::size_t d = 0; d < blocks.head_dim; ++d) {
          panel[d * kPanel] = Simd::to_float(source[d * blocks.block_size + i]);
        }
        ++i;
      }
    }
  });
}

// Copies the tile's values into panels [kAttentionTile, kPanel] of f32; dimensions behind the last are zero.
template <class Simd, class T>
void pack_values(const TileBlocks<T>& blocks, std::size_t num_keys, std::size_t padded_dim, float* packed) {
  const std::size_t whole = blocks.head_dim / Simd::kLanes * Simd::kLanes;
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    const T* const rows = blocks.values + place.block + place.offset * blocks.head_dim;
    const auto target = [&](std::size_t d) {
      return packed + d / kPanel * kPanel * kAttentionTile + key * kPanel + d % kPanel;
    };
    for (std::size_t i = 0; i < run; ++i) {
      const T* const row = rows + i * blocks.head_dim;
      for (std::size_t d = 0; d < whole; d += Simd::kLanes) Simd::store(target(d) + i * kPanel, Simd::load(row + d));
      for (std::size_t d = whole; d < padded_dim; ++d) {
        target(d)[i * kPanel] = d < blocks.head_dim ? Simd::to_float(row[d]) : 0.0f;
      }
    }
  });
}

// Few rows: reads the tile where it lies, its values asked for during the scores, the next tile's keys during the
// values.
template <class Simd, class T>
void attend_in_place(const TileBlocks<T>& blocks, std::size_t num_keys, const TileBlocks<T>& next,
                     std::size_t num_next_keys, const RowBand& band) {
  // A step of eight turns uses up to eight dimensions of four vectors: as much is asked for.
  constexpr std::size_t kTurns = 8;
  TileAhead<LinesAhead<kTurns, kTurns * 4 * Simd::kLanes * sizeof(T) / kCacheLine>> ahead;
  add_values_ahead(blocks, num_keys, ahead.values);
  add_keys_ahead(next, num_next_keys, ahead.keys);
  TileKeys<Simd, T> tile;
  point_at_tile<Simd>(blocks, num_keys, tile);
  const auto panel_of = [&](std::size_t d) { return [&tile, d](std::size_t key) { return tile.value_rows[key] + d; }; };
  if (band.padded_dim % (2 * kPanel) == 0) {
    attend_band<Simd, 2 * kPanel>(band, tile, num_keys, panel_of, ahead);
  } else {
    attend_band<Simd, kPanel>(band, tile, num_keys, panel_of, ahead);
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
  add_values_ahead(next, num_next_keys, ahead.values);
  add_keys_ahead(next, num_next_keys, ahead.keys);
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

// Keeps this tile's result of every row of the band that sees some of it.
template <class Simd>
void store_partials(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head, std::size_t tile,
                    std::size_t first, const RowBand& band) {
  for (std::size_t r = 0; r < band.rows; ++r) {
    if (band.limits[r] == 0) continue;
    const AttentionToken& token = unit_token(problem, unit, (first + r) / problem.group);
    float* const row = partial_row(problem, token, tile, kv_head * problem.group + (first + r) % problem.group);
    const float* const values = band.tile_values + r * band.padded_dim;
    for (std::size_t d = 0; d < band.padded_dim; d += Simd::kLanes) Simd::store(row + d, Simd::load(values + d));
    row[band.padded_dim] = band.tile_peak[r];
    row[band.padded_dim + 1] = band.tile_sum[r];
  }
}

// Calls body(row, token, head) for the rows of tokens that see tile `tile` or one behind it.
template <class Body>
FOREWORD_INLINE void for_rows(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head,
                              std::size_t tile, Body body) {
  for (std::size_t r = 0; r < unit.num_tokens * problem.group; ++r) {
    const AttentionToken& token = unit_token(problem, unit, r / problem.group);
    if (tile < token.num_tiles()) body(r, token, kv_head * problem.group + r % problem.group);
  }
}

// The rows' sums over the tiles before the unit.
template <class Simd>
void load_sums(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head, const UnitWork& work) {
  for_rows(problem, unit, kv_head, unit.tile_begin, [&](std::size_t r, const AttentionToken& token, std::size_t head) {
    const float* const from = partial_row(problem, token, 0, head);
    float* const to = work.values + r * work.padded_dim;
    for (std::size_t d = 0; d < work.padded_dim; d += Simd::kLanes) Simd::store(to + d, Simd::load(from + d));
    work.peak[r] = from[work.padded_dim];
    work.sum[r] = from[work.padded_dim + 1];
  });
}

// Writes out what the unit completes, and keeps the sums of the other rows for the tiles behind it.
template <class Simd>
void keep_sums(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head, const UnitWork& work) {
  for_rows(problem, unit, kv_head, unit.tile_begin, [&](std::size_t r, const AttentionToken& token, std::size_t head) {
    const float* const from = work.values + r * work.padded_dim;
    if (unit.tile_end >= token.num_tiles()) {
      float* const out = problem.args.out + static_cast<std::size_t>(token.token) * problem.args.out_stride;
      write_row<Simd>(from, work.sum[r], work.head_dim, out + head * work.head_dim);
      return;
    }
    float* const to = partial_row(problem, token, 0, head);
    for (std::size_t d = 0; d < work.padded_dim; d += Simd::kLanes) Simd::store(to + d, Simd::load(from + d));
    to[work.padded_dim] = work.peak[r];
    to[work.padded_dim + 1] = work.sum[r];
  });
}

template <class Simd, class T>
void attend_unit(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head, bool goes_on,
                 float* scratch) {
  UnitWork work(problem, unit, scratch);
  if constexpr (kIsCode<T>) {
    pack_query_codes(problem, unit, kv_head, work);
  } else {
    pack_queries(problem, unit, kv_head, work);
  }
  if (goes_on && unit.tile_begin > 0) load_sums<Simd>(problem, unit, kv_head, work);
  const auto keys_of = [&](std::size_t tile) { return tile < unit.tile_end ? most_keys_seen(problem, unit, tile) : 0; };
  std::size_t num_keys = keys_of(unit.tile_begin);
  for (std::size_t tile = unit.tile_begin, num_next_keys; tile < unit.tile_end; ++tile, num_keys = num_next_keys) {
    num_next_keys = keys_of(tile + 1);
    set_limits(problem, unit, tile, work);
    const TileBlocks<T> blocks(problem, unit, kv_head, tile), next(problem, unit, kv_head, tile + 1);
    // Every row sees some of tile 0.
    const TileEnd end = !goes_on ? TileEnd::kKeep : tile == 0 ? TileEnd::kFirst : TileEnd::kMerge;
    const auto done = [&](std::size_t first, const RowBand& band) {
      if (!goes_on) store_partials<Simd>(problem, unit, kv_head, tile, first, band);
    };
    if (unit.in_place) {
      const RowBand all(work, 0, end);
      if constexpr (kIsCode<T>) {
        attend_codes_in_place<Simd>(blocks, num_keys, next, num_next_keys, work, all);
      } else {
        attend_in_place<Simd>(blocks, num_keys, next, num_next_keys, all);
      }
      done(0, all);
    } else if constexpr (kIsCode<T>) {
      attend_codes_packed<Simd>(blocks, num_keys, next, num_next_keys, work, end, done);
    } else {
      attend_packed<Simd>(blocks, num_keys, next, num_next_keys, work, end, done);
    }
  }
  if (goes_on) keep_sums<Simd>(problem, unit, kv_head, work);
}

template <class Simd>
void attend(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head, bool goes_on,
            float* scratch) {
  switch (problem.cache.dtype) {
    case KvDtype::kF32:
      return attend_unit<Simd, float>(problem, unit, kv_head, goes_on, scratch);
    case KvDtype::kF16:
      return attend_unit<Simd, std::uint16_t>(problem, unit, kv_head, goes_on, scratch);
    case KvDtype::kInt8:
      return attend_unit<Simd, std::int8_t>(problem, unit, kv_head, goes_on, scratch);
    case KvDtype::kInt16:
      return attend_unit<Simd, std::int16_t>(problem, unit, kv_head, goes_on, scratch);
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
