// Where the rows of a unit lie in its call, and a tile in the blocks of a sequence. Included by attention_code_unit.h.
#pragma once

#include "attention_band.h"
#include "codes.h"

namespace foreword {
namespace {

constexpr float kLog2E = 0x1.715476p+0f;

inline const AttentionToken& unit_token(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t i) {
  return problem.tokens[problem.unit_tokens[unit.token_begin + i]];
}

// Row r of a KV head's `rows`: its query, and the group of rows that it is packed with.
struct UnitRow {
  const float* query;
  std::size_t group_begin, group_rows;

  UnitRow(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head, std::size_t r,
          std::size_t rows) {
    const std::size_t token = static_cast<std::size_t>(unit_token(problem, unit, r / problem.group).token);
    const std::size_t head = kv_head * problem.group + r % problem.group;
    query = problem.args.qkv + token * problem.args.qkv_stride + head * problem.cache.head_dim;
    group_begin = r / kRowGroup * kRowGroup;
    group_rows = rows - group_begin < kRowGroup ? rows - group_begin : kRowGroup;
  }
};

// The blocks of KV heads that lie beside one another, as the tile's keys see them.
template <class T>
struct TileBlocks {
  const T* keys;
  const T* values;
  const std::int32_t* table;
  std::size_t block_size, head_dim, head_size, block_stride, start;

  TileBlocks(const AttentionProblem& problem, const AttentionUnit& unit, std::size_t kv_head, std::size_t tile) {
    block_size = problem.cache.block_size;
    head_dim = problem.cache.head_dim;
    head_size = problem.cache.head_bytes() / sizeof(T);
    block_stride = problem.cache.num_kv_heads * head_size;
    keys = static_cast<const T*>(problem.cache.k) + kv_head * head_size;
    values = static_cast<const T*>(problem.cache.v) + kv_head * head_size;
    table = unit.block_table;
    start = tile * kAttentionTile;
  }

  // Of the KV head that lies `count` behind.
  FOREWORD_INLINE TileBlocks head(std::size_t count) const {
    TileBlocks blocks = *this;
    blocks.keys += count * head_size;
    blocks.values += count * head_size;
    return blocks;
  }

  struct Place {
    std::size_t block, offset;
  };
};

// Calls body(key, run, place) for each run of the tile's keys that lie in one block.
template <class T, class Body>
FOREWORD_INLINE void for_runs(const TileBlocks<T>& blocks, std::size_t num_keys, Body body) {
  const std::int32_t* block = blocks.table + blocks.start / blocks.block_size;
  std::size_t offset = blocks.start % blocks.block_size;
  for (std::size_t key = 0, run; key < num_keys; key += run, ++block, offset = 0) {
    const std::size_t left = blocks.block_size - offset;
    run = left < num_keys - key ? left : num_keys - key;
    body(key, run, typename TileBlocks<T>::Place{static_cast<std::size_t>(*block) * blocks.block_stride, offset});
  }
}

// Calls vectors.operator()<kWidth>(key, first) for the tile's keys that lie in one block and one panel: a whole panel's
// or a vector's, `first` the first one's place in the block; what they hold behind the last key is read too. Calls
// one(key, first) for each other key.
template <class Simd, class T, class Vectors, class One>
FOREWORD_INLINE void for_panel_parts(const TileBlocks<T>& blocks, std::size_t num_keys, Vectors vectors, One one) {
  for_runs(blocks, num_keys, [&](std::size_t key, std::size_t run, auto place) {
    for (std::size_t i = 0; i < run;) {
      const std::size_t column = (key + i) % kPanel;
      const auto first = typename TileBlocks<T>::Place{place.block, place.offset + i};
      if (column == 0 && first.offset + kPanel <= blocks.block_size) {
        vectors.template operator()<kPanel>(key + i, first);
        i += kPanel;
      } else if (column % Simd::kLanes == 0 && first.offset + Simd::kLanes <= blocks.block_size) {
        vectors.template operator()<Simd::kLanes>(key + i, first);
        i += Simd::kLanes;
      } else {
        one(key + i, first);
        ++i;
      }
    }
  });
}

// Products work on up to four vectors of keys: lets those behind the last repeat it.
template <class Simd, class T>
FOREWORD_INLINE void repeat_last_vector(std::size_t num_keys, const T** key_vectors) {
  const std::size_t used = (num_keys + Simd::kLanes - 1) / Simd::kLanes;
  for (std::size_t v = used; v < (used + 3) / 4 * 4; ++v) key_vectors[v] = key_vectors[used - 1];
}

// The tile's values, and all of the blocks that hold its keys (dimensions lie apart), of `num_heads` KV heads: whole
// blocks from end to end. Of a block that the tile has a part of, and where a head is alone, the values that are needed
// and the first line of the scales of both (16 of them), these asked for at once, since a piece is asked for in whole
// steps.
static_assert(kAttentionTile / 8 + 2 * kBandRows <= kAttentionTile + 1);  // in place: blocks of 8 or more, two in part
template <class T, class Ahead>
void add_values_ahead(const TileBlocks<T>& blocks, std::size_t num_heads, std::size_t num_keys, Ahead& ahead) {
  for_runs(blocks, num_keys, [&](std::size_t, std::size_t run, auto place) {
    const T* const block = blocks.values + place.block;
    if (num_heads > 1 && run == blocks.block_size) return ahead.add(block, num_heads * blocks.head_size * sizeof(T));
    for (std::size_t h = 0; h < num_heads; ++h) {
      const T* const head = block + h * blocks.head_size;
      ahead.add(head + place.offset * blocks.head_dim, run * blocks.head_dim * sizeof(T));
      if constexpr (kIsCode<T>) __builtin_prefetch(head + blocks.block_size * blocks.head_dim);
    }
  });
}
template <class T, class Ahead>
void add_keys_ahead(const TileBlocks<T>& blocks, std::size_t num_heads, std::size_t num_keys, Ahead& ahead) {
  for_runs(blocks, num_keys, [&](std::size_t, std::size_t, auto place) {
    const T* const block = blocks.keys + place.block;
    if (num_heads > 1) return ahead.add(block, num_heads * blocks.head_size * sizeof(T));
    const std::size_t codes = blocks.block_size * blocks.head_dim;
    ahead.add(block, codes * sizeof(T));
    if constexpr (kIsCode<T>) __builtin_prefetch(block + codes);
  });
}

}  // namespace
}  // namespace foreword
