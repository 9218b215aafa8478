// Where a unit finds its queries and tiles that are codes: see attention_codes.h. Included by attention_unit.h.
#pragma once

#include "attention_blocks.h"
#include "attention_codes.h"

namespace foreword {
namespace {

// Queries of one KV head as codes, and their rows' scales, in the order score_codes_block reads them.
inline void pack_query_codes(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head,
                             std::size_t first, const UnitWork& work) {
  const float scale = problem.args.scale * kLog2E;
  std::int16_t* const codes = reinterpret_cast<std::int16_t*>(work.queries) + first * work.head_dim;
  for (std::size_t r = 0; r < work.head_rows; ++r) {
    const UnitRow row(problem, unit, kv_head, r, work.head_rows);
    const CodeScale by = scale_by_length(row.query, work.head_dim);
    work.row_scales[first + r] = by.scale * scale;
    std::int16_t* const packed = codes + row.group_begin * work.head_dim + (r - row.group_begin) * 2;
    for (std::size_t d = 0; d < work.head_dim; d += 2) {
      std::int16_t* const pair = packed + d * row.group_rows;
      for (std::size_t i = 0; i < 2; ++i) {
        pair[i] = by.inverse == 0.0f ? std::int16_t{0} : to_code(row.query[d + i] * by.inverse);
      }
    }
  }
}

// Copies the scales of the tile's keys, or of its values, to where they follow one another.
template <class Code>
void copy_scales(const TileBlocks<Code>& blocks, const Code* of, std::size_t num_keys, float* scales) {
  const std::size_t codes = blocks.block_size * blocks.head_dim;
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    const char* const first = reinterpret_cast<const char*>(of + place.block + codes);
    __builtin_memcpy(scales + key, first + place.offset * kKvScaleBytes, run * kKvScaleBytes);
  });
}

// Points at the tile's keys where they lie: vectors are whole.
template <class Simd, class Code>
void point_at_key_codes(const TileBlocks<Code>& blocks, std::size_t num_keys, TileCodes<Simd, Code>& tile) {
  tile.key_stride = 2 * blocks.block_size;
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    for (std::size_t i = 0; i < run; i += Simd::kLanes) {
      tile.key_vectors[(key + i) / Simd::kLanes] = blocks.keys + place.block + 2 * (place.offset + i);
    }
  });
  repeat_last_vector<Simd>(num_keys, tile.key_vectors);
}

// Copies the tile's keys into panels [D/2, kPanel, 2] of int16: see pack_keys.
template <class Simd, class Code>
void pack_key_codes(const TileBlocks<Code>& blocks, std::size_t num_keys, std::int16_t* packed) {
  using Place = typename TileBlocks<Code>::Place;
  const std::size_t head_dim = blocks.head_dim, stride = 2 * blocks.block_size;
  const auto panel_of = [&](std::size_t key) { return packed + key / kPanel * kPanel * head_dim + key % kPanel * 2; };
  const auto copy_vectors = [&]<std::size_t kWidth>(std::size_t key, Place first) {
    std::int16_t* const panel = panel_of(key);
    const Code* const source = blocks.keys + first.block + 2 * first.offset;
    for (std::size_t d = 0; d < head_dim / 2; ++d) {
#pragma GCC unroll 4
      for (std::size_t at = 0; at < kWidth; at += Simd::kLanes) {
        Simd::store_pairs(panel + 2 * (d * kPanel + at), Simd::load_pairs(source + d * stride + 2 * at));
      }
    }
  };
  const auto copy_one = [&](std::size_t key, Place first) {
    std::int16_t* const panel = panel_of(key);
    const Code* const source = blocks.keys + first.block + 2 * first.offset;
    for (std::size_t d = 0; d < head_dim / 2; ++d) {
      for (std::size_t which = 0; which < 2; ++which) panel[d * 2 * kPanel + which] = source[d * stride + which];
    }
  };
  for_panel_parts<Simd>(blocks, num_keys, copy_vectors, copy_one);
}

// Copies the tile's values into panels [kAttentionTile / 2, kPanel, 2] of int16; dimensions behind the last are zero.
// One panel after another: see pack_values.
template <class Simd, class Code>
void pack_value_codes(const TileBlocks<Code>& blocks, std::size_t num_keys, std::size_t padded_dim,
                      std::int16_t* packed) {
  const std::size_t head_dim = blocks.head_dim;
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    const Code* const rows = blocks.values + place.block + place.offset * head_dim;
    for (std::size_t panel = 0; panel < padded_dim; panel += kPanel) {
      std::int16_t* const target = packed + panel * kAttentionTile + key * kPanel;
      if (panel + kPanel <= head_dim) {
        for (std::size_t i = 0; i < run; i += 2) {
#pragma GCC unroll 4
          for (std::size_t d = 0; d < kPanel; d += Simd::kLanes) {
            Simd::store_pairs(target + i * kPanel + 2 * d, Simd::load_pairs(rows + i * head_dim + 2 * (panel + d)));
          }
        }
        continue;
      }
      for (std::size_t i = 0; i < run; i += 2) {
        for (std::size_t d = 0; d < 2 * kPanel; ++d) {
          const std::size_t from = 2 * panel + d;
          target[i * kPanel + d] = from < 2 * head_dim ? rows[i * head_dim + from] : Code{0};
        }
      }
    }
  });
}

// Few rows: reads the tile where it lies, one KV head after another, its values asked for during the scores, the next
// tile's keys during the values.
template <class Simd, class Code>
void attend_codes_in_place(const TileBlocks<Code>& blocks, std::size_t num_keys, const TileBlocks<Code>& next,
                           std::size_t num_next_keys, const UnitWork& work, const RowBand& band) {
  // A step of eight turns uses up to eight pairs of two vectors: as much is asked for.
  constexpr std::size_t kTurns = 8;
  const std::size_t rows = work.head_rows, num_heads = band.rows / rows;
  TileAhead<LinesAhead<kTurns, kTurns * 4 * Simd::kLanes * sizeof(Code) / kCacheLine>> ahead;
  add_values_ahead(blocks, num_heads, num_keys, ahead.values);
  add_keys_ahead(next, num_heads, num_next_keys, ahead.keys);
  for (std::size_t h = 0; h < num_heads; ++h) {
    const TileBlocks<Code> head = blocks.head(h);
    TileCodes<Simd, Code> tile;
    point_at_key_codes<Simd>(head, num_keys, tile);
    copy_scales(head, head.keys, num_keys, work.key_scales);
    tile.key_scales = work.key_scales;
    score_codes<Simd>(band.part(h * rows, rows), tile, num_keys, ahead.values);
  }
  for (std::size_t h = 0; h < num_heads; ++h) {
    const TileBlocks<Code> head = blocks.head(h);
    copy_scales(head, head.values, num_keys, work.value_scales);
    soften_codes<Simd>(band.part(h * rows, rows), work.value_scales, ahead.keys);
  }
  round_weights<Simd>(band);
  take_in_sums<Simd>(band);
  // Of keys 2i and 2i + 1, D pairs, of the first head; those of the others lie equally far behind.
  const Code* rows_of_pairs[kAttentionTile / 2];
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    for (std::size_t i = 0; i < run; i += 2) {
      rows_of_pairs[(key + i) / 2] = blocks.values + place.block + (place.offset + i) * blocks.head_dim;
    }
  });
  for (std::size_t h = 0; h < num_heads; ++h) {
    const auto panel_of = [&](std::size_t d) {
      return [&, at = h * blocks.head_size + 2 * d](std::size_t i) { return rows_of_pairs[i] + at; };
    };
    if (band.padded_dim % (2 * kPanel) == 0) {
      value_codes<Simd, 2 * kPanel>(band.part(h * rows, rows), panel_of, ahead.keys);
    } else {
      value_codes<Simd, kPanel>(band.part(h * rows, rows), panel_of, ahead.keys);
    }
  }
}

// Keys of int16 are panels where they lie, if vectors don't cross blocks; other keys are copied to `packed`.
template <class Simd, class Code>
TileCodes<Simd, std::int16_t> panels_of_keys(const TileBlocks<Code>& blocks, std::size_t num_keys,
                                             std::int16_t* packed) {
  TileCodes<Simd, std::int16_t> tile;
  if constexpr (sizeof(Code) == sizeof(std::int16_t)) {
    if (blocks.block_size % Simd::kLanes == 0) {
      point_at_key_codes<Simd>(blocks, num_keys, tile);
      return tile;
    }
  }
  pack_key_codes<Simd>(blocks, num_keys, packed);
  tile.key_stride = 2 * kPanel;
  for (std::size_t v = 0; v < kAttentionTile / Simd::kLanes; ++v) {
    const std::size_t key = v * Simd::kLanes;
    tile.key_vectors[v] = packed + key / kPanel * kPanel * blocks.head_dim + key % kPanel * 2;
  }
  return tile;
}

// Many rows: copies the tile into panels first; done(first row, band) after each band. The next tile is asked for.
template <class Simd, class Code, class Done>
void attend_codes_packed(const TileBlocks<Code>& blocks, std::size_t num_keys, const TileBlocks<Code>& next,
                         std::size_t num_next_keys, const UnitWork& work, TileEnd end, Done done) {
  std::int16_t* const values = reinterpret_cast<std::int16_t*>(work.packed_values);
  auto tile = panels_of_keys<Simd>(blocks, num_keys, reinterpret_cast<std::int16_t*>(work.packed_keys));
  pack_value_codes<Simd>(blocks, num_keys, work.padded_dim, values);
  copy_scales(blocks, blocks.keys, num_keys, work.key_scales);
  copy_scales(blocks, blocks.values, num_keys, work.value_scales);
  tile.key_scales = work.key_scales;
  TileAhead<LinesAhead<32, 8>> ahead;
  add_values_ahead(next, 1, num_next_keys, ahead.values);
  add_keys_ahead(next, 1, num_next_keys, ahead.keys);
  for (std::size_t first = 0; first < work.rows; first += kBandRows) {
    const RowBand band(work, first, end);
    const auto panel_of = [&](std::size_t d) {
      const std::int16_t* const panel = values + d * kAttentionTile;
      return [panel](std::size_t i) { return panel + i * 2 * kPanel; };
    };
    attend_codes_band<Simd, kPanel>(band, tile, work.value_scales, num_keys, panel_of, ahead);
    done(first, band);
  }
}

}  // namespace
}  // namespace foreword
