// Where a unit finds its queries and tiles that are codes: see attention_codes.h. Included by attention_unit.h.
#pragma once

#include "attention_blocks.h"
#include "attention_codes.h"

namespace foreword {
namespace {

// Queries of the unit as codes, and their rows' scales, in the order score_codes_block reads them.
inline void pack_query_codes(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head,
                             const UnitWork& work) {
  const float scale = problem.args.scale * kLog2E;
  std::int16_t* const codes = reinterpret_cast<std::int16_t*>(work.queries);
  for (std::size_t r = 0; r < work.rows; ++r) {
    const UnitRow row(problem, unit, kv_head, r, work.rows);
    const CodeScale by = scale_by_length(row.query, work.head_dim);
    work.row_scales[r] = by.scale * scale;
    std::int16_t* const packed = codes + row.group_begin * work.head_dim + (r - row.group_begin) * 2;
    for (std::size_t d = 0; d < work.head_dim; d += 2) {
      std::int16_t* const pair = packed + d * row.group_rows;
      for (std::size_t i = 0; i < 2; ++i) {
        pair[i] = by.inverse == 0.0f ? std::int16_t{0} : to_code(row.query[d + i] * by.inverse);
      }
    }
  }
}

// Copies the scales of the tile's keys and values to where they follow one another.
template <class Code>
void copy_scales(const TileBlocks<Code>& blocks, std::size_t num_keys, const UnitWork& work) {
  const std::size_t codes = blocks.block_size * blocks.head_dim;
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    const auto copy = [&](const Code* block, float* scales) {
      const char* const first = reinterpret_cast<const char*>(block + place.block + codes);
      __builtin_memcpy(scales + key, first + place.offset * kKvScaleBytes, run * kKvScaleBytes);
    };
    copy(blocks.keys, work.key_scales);
    copy(blocks.values, work.value_scales);
  });
}

// Points at the tile where it lies: vectors of keys and of values are whole.
template <class Simd, class Code>
void point_at_codes(const TileBlocks<Code>& blocks, std::size_t num_keys, TileCodes<Simd, Code>& tile) {
  tile.key_stride = 2 * blocks.block_size;
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    for (std::size_t i = 0; i < run; i += Simd::kLanes) {
      tile.key_vectors[(key + i) / Simd::kLanes] = blocks.keys + place.block + 2 * (place.offset + i);
    }
    for (std::size_t i = 0; i < run; i += 2) {
      tile.value_rows[(key + i) / 2] = blocks.values + place.block + (place.offset + i) * blocks.head_dim;
    }
  });
  // score_codes_block works on up to four vectors: let those behind the last repeat it.
  const std::size_t used = (num_keys + Simd::kLanes - 1) / Simd::kLanes;
  for (std::size_t v = used; v < (used + 3) / 4 * 4; ++v) tile.key_vectors[v] = tile.key_vectors[used - 1];
}

// Copies the tile's keys into panels [D/2, kPanel, 2] of int16. Vectors that lie in one block are read whole; what they
// hold behind the last key is copied and not looked at.
template <class Simd, class Code>
void pack_key_codes(const TileBlocks<Code>& blocks, std::size_t num_keys, std::int16_t* packed) {
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    const Code* const source = blocks.keys + place.block + 2 * place.offset;
    const std::size_t stride = 2 * blocks.block_size, readable = blocks.block_size - place.offset;
    for (std::size_t i = 0; i < run;) {
      const std::size_t column = (key + i) % kPanel;
      std::int16_t* const panel = packed + (key + i) / kPanel * kPanel * blocks.head_dim + 2 * column;
      const bool is_whole = column % Simd::kLanes == 0 && i + Simd::kLanes <= readable;
      for (std::size_t d = 0; d < blocks.head_dim / 2; ++d) {
        const Code* const pair = source + d * stride + 2 * i;
        std::int16_t* const to = panel + d * 2 * kPanel;
        if (is_whole) {
          Simd::store_pairs(to, Simd::load_pairs(pair));
        } else {
          to[0] = pair[0];
          to[1] = pair[1];
        }
      }
      i += is_whole ? Simd::kLanes : 1;
    }
  });
}

// Copies the tile's values into panels [kAttentionTile / 2, kPanel, 2] of int16; dimensions behind the last are zero.
template <class Simd, class Code>
void pack_value_codes(const TileBlocks<Code>& blocks, std::size_t num_keys, std::size_t padded_dim,
                      std::int16_t* packed) {
  const std::size_t whole = blocks.head_dim / Simd::kLanes * Simd::kLanes;
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    for (std::size_t i = 0; i < run; i += 2) {
      const Code* const row = blocks.values + place.block + (place.offset + i) * blocks.head_dim;
      const auto target = [&](std::size_t d) {
        return packed + d / kPanel * kPanel * kAttentionTile + (key + i) * kPanel + d % kPanel * 2;
      };
      for (std::size_t d = 0; d < whole; d += Simd::kLanes) {
        Simd::store_pairs(target(d), Simd::load_pairs(row + 2 * d));
      }
      for (std::size_t d = whole; d < padded_dim; ++d) {
        for (std::size_t which = 0; which < 2; ++which) {
          target(d)[which] = d < blocks.head_dim ? row[2 * d + which] : Code{0};
        }
      }
    }
  });
}

// Few rows: reads the tile where it lies, its values asked for during the scores, the next tile's keys during the
// values.
template <class Simd, class Code>
void attend_codes_in_place(const TileBlocks<Code>& blocks, std::size_t num_keys, const TileBlocks<Code>& next,
                           std::size_t num_next_keys, const UnitWork& work, const RowBand& band) {
  // A step of eight turns uses up to eight pairs of two vectors: as much is asked for.
  constexpr std::size_t kTurns = 8;
  TileAhead<LinesAhead<kTurns, kTurns * 4 * Simd::kLanes * sizeof(Code) / kCacheLine>> ahead;
  add_values_ahead(blocks, num_keys, ahead.values);
  add_keys_ahead(next, num_next_keys, ahead.keys);
  TileCodes<Simd, Code> tile;
  point_at_codes<Simd>(blocks, num_keys, tile);
  copy_scales(blocks, num_keys, work);
  tile.key_scales = work.key_scales;
  tile.value_scales = work.value_scales;
  const auto panel_of = [&](std::size_t d) { return [&tile, d](std::size_t i) { return tile.value_rows[i] + 2 * d; }; };
  if (band.padded_dim % (2 * kPanel) == 0) {
    attend_codes_band<Simd, 2 * kPanel>(band, tile, num_keys, panel_of, ahead);
  } else {
    attend_codes_band<Simd, kPanel>(band, tile, num_keys, panel_of, ahead);
  }
}

// Many rows: copies the tile into panels first; done(first row, band) after each band. The next tile is asked for.
template <class Simd, class Code, class Done>
void attend_codes_packed(const TileBlocks<Code>& blocks, std::size_t num_keys, const TileBlocks<Code>& next,
                         std::size_t num_next_keys, const UnitWork& work, TileEnd end, Done done) {
  std::int16_t* const keys = reinterpret_cast<std::int16_t*>(work.packed_keys);
  std::int16_t* const values = reinterpret_cast<std::int16_t*>(work.packed_values);
  pack_key_codes<Simd>(blocks, num_keys, keys);
  pack_value_codes<Simd>(blocks, num_keys, work.padded_dim, values);
  copy_scales(blocks, num_keys, work);
  TileCodes<Simd, std::int16_t> tile;
  tile.key_stride = 2 * kPanel;
  tile.key_scales = work.key_scales;
  tile.value_scales = work.value_scales;
  for (std::size_t v = 0; v < kAttentionTile / Simd::kLanes; ++v) {
    const std::size_t key = v * Simd::kLanes;
    tile.key_vectors[v] = keys + key / kPanel * kPanel * work.head_dim + key % kPanel * 2;
  }
  TileAhead<LinesAhead<32, 8>> ahead;
  add_values_ahead(next, num_next_keys, ahead.values);
  add_keys_ahead(next, num_next_keys, ahead.keys);
  for (std::size_t first = 0; first < work.rows; first += kBandRows) {
    const RowBand band(work, first, end);
    const auto panel_of = [&](std::size_t d) {
      const std::int16_t* const panel = values + d * kAttentionTile;
      return [panel](std::size_t i) { return panel + i * 2 * kPanel; };
    };
    attend_codes_band<Simd, kPanel>(band, tile, num_keys, panel_of, ahead);
    done(first, band);
  }
}

}  // namespace
}  // namespace foreword
