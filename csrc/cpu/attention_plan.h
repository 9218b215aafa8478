// How one call of paged_attention is cut into work.
//
// A unit is a range of key tiles for some tokens that read the same blocks; it is done for some KV heads at a time, by
// any thread. What a tile gives a row (its peak, its sum, its weighted values) is a function of that row and of the
// tile's keys alone, and tiles are merged in ascending order, so cutting never shows in the result. A token whose tiles
// lie in several units keeps its sums so far in a row of its own. A unit that finds in it all tiles before its own goes
// on from there; one that is taken before that leaves a partial result per tile, merged as soon as those before them
// are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "foreword/attention.h"

namespace foreword {

struct AttentionToken {
  std::int32_t token;     // row of qkv and out
  std::int32_t position;  // sees keys 0..position
  // Where it has several units: tile t of head h is partial row partial + h * num_tiles() + t; row 0 has its sums so
  // far.
  std::size_t partial;
  std::uint32_t num_units;

  // Always inlined, so that no copy for another instruction set is linked.
  [[gnu::always_inline]] std::size_t num_tiles() const {
    return static_cast<std::size_t>(position) / kAttentionTile + 1;
  }
};

struct AttentionUnit {
  const std::int32_t* block_table;
  std::uint32_t token_begin, num_tokens;  // into unit_tokens
  std::uint32_t tile_begin, tile_end;
  std::uint32_t num_heads;  // KV heads done together: of few rows, so that blocks are read from end to end
  std::uint32_t cost;       // of those, in groups of rows times tiles
  bool split;               // its tokens have other units too; else it covers all that they see, and writes out
  bool in_place;            // few rows: reads blocks where they lie; with more, copies of the tiles pay off
};

// KV heads [begin, end) of a unit: what a thread takes.
struct AttentionItem {
  std::uint32_t unit, head_begin, head_end;

  // Always inlined, as above.
  [[gnu::always_inline]] std::size_t num_heads() const { return head_end - head_begin; }
};

struct AttentionPlan {
  std::vector<AttentionToken> tokens;      // the step's tokens in order
  std::vector<std::uint32_t> unit_tokens;  // indices into tokens
  std::vector<AttentionUnit> units;
  std::vector<AttentionItem> items;  // the costly ones first
  std::size_t num_partials = 0;      // rows
  std::size_t max_rows = 0;          // of an item
};

AttentionPlan plan_attention(const AttentionArgs& args, const KvCacheView& cache, std::size_t num_threads);

}  // namespace foreword
