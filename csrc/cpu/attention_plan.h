// How one call of paged_attention is cut into work.
//
// A unit is a range of key tiles for some tokens that read the same blocks; it is done once per KV head, by any thread.
// What a tile gives a row (its peak, its sum, its weighted values) is a function of that row and of the tile's keys
// alone, so cutting never shows in the result: a token whose tiles lie in several units keeps one partial result per
// tile, and whoever finishes its last unit merges them in ascending order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "foreword/attention.h"

namespace foreword {

struct AttentionToken {
  std::int32_t token;     // row of qkv and out
  std::int32_t position;  // sees keys 0..position
  // Where it has several units: tile t of head h is partial row partial + t * H + h.
  std::size_t partial;
  std::uint32_t num_units;
};

struct AttentionUnit {
  const std::int32_t* block_table;
  std::uint32_t token_begin, num_tokens;  // into unit_tokens
  std::uint32_t tile_begin, tile_end;
  std::uint32_t cost;  // of one KV head, in groups of rows times tiles
  bool split;          // leaves partial results; else it covers all its tokens see, and writes out
  bool in_place;       // few rows: reads blocks where they lie; with more, copies of the tiles pay off
};

struct AttentionPlan {
  std::vector<AttentionToken> tokens;      // the step's tokens in order
  std::vector<std::uint32_t> unit_tokens;  // indices into tokens
  std::vector<AttentionUnit> units;        // the costly ones first
  std::size_t num_partials = 0;            // rows
  std::size_t max_rows = 0;                // of a unit and one KV head
};

AttentionPlan plan_attention(const AttentionArgs& args, const KvCacheView& cache, std::size_t num_threads);

}  // namespace foreword
