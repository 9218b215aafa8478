#include "attention_plan.h"

#include <algorithm>

namespace foreword {
namespace {

constexpr std::size_t kMaxRows = 96;      // a unit's scratch fits a 512 KiB cache beside a tile; packing it costs 3 %
constexpr std::size_t kInPlaceRows = 12;  // see AttentionUnit::in_place
constexpr std::size_t kRowsPerCost = 6;
constexpr std::size_t kUnitsPerThread = 6;  // so that no thread waits long for the last unit
constexpr std::size_t kMinTiles = 2;        // of a split unit: fewer, and merging shows

std::uint32_t narrow(std::size_t value) {
  return static_cast<std::uint32_t>(value);
}

class Planner {
 public:
  Planner(const AttentionArgs& args, const KvCacheView& cache, std::size_t num_threads)
      : args_(args), num_kv_heads_(cache.num_kv_heads), num_threads_(num_threads) {
    group_ = args.num_heads / num_kv_heads_;
    // Vectors of up to 8 keys never cross a block, panels of 16 values never cross a row.
    aligned_ = cache.block_size % 8 == 0 && cache.head_dim % 16 == 0;
  }

  AttentionPlan plan() {
    for (std::size_t s = 0; s < args_.num_sequences; ++s) add_sequence(s);
    split_units();
    std::sort(plan_.units.begin(), plan_.units.end(),
              [](const AttentionUnit& a, const AttentionUnit& b) { return a.cost > b.cost; });
    return std::move(plan_);
  }

 private:
  void add_sequence(std::size_t s) {
    const std::int32_t begin = args_.query_start_loc[s], end = args_.query_start_loc[s + 1];
    const std::int32_t first_position = args_.context_lens[s] - (end - begin);
    const std::size_t step = std::max<std::size_t>(1, kMaxRows / group_);
    const std::size_t first = plan_.tokens.size(), count = static_cast<std::size_t>(end - begin);
    for (std::int32_t i = 0; i < end - begin; ++i) {
      plan_.unit_tokens.push_back(narrow(plan_.tokens.size()));
      plan_.tokens.push_back({begin + i, first_position + i, 0, 1});
    }
    for (std::size_t i = 0; i < count; i += step) {
      const std::size_t num_tokens = std::min(step, count - i);
      const std::size_t last_position = static_cast<std::size_t>(plan_.tokens[first + i + num_tokens - 1].position);
      add_unit(args_.block_tables + s * args_.max_blocks, first + i, num_tokens, last_position / kAttentionTile + 1);
    }
  }

  void add_unit(const std::int32_t* table, std::size_t token_begin, std::size_t num_tokens, std::size_t num_tiles) {
    const std::size_t rows = num_tokens * group_;
    const std::size_t cost = num_tiles * ((rows + kRowsPerCost - 1) / kRowsPerCost + 1);
    plan_.units.push_back({table, narrow(token_begin), narrow(num_tokens), 0, narrow(num_tiles), narrow(cost), false,
                           aligned_ && rows <= kInPlaceRows});
    plan_.max_rows = std::max(plan_.max_rows, rows);
  }

  // Cuts units that would keep one thread busy while the others are done.
  void split_units() {
    if (num_threads_ == 1) return;
    std::size_t total = 0;
    for (const AttentionUnit& unit : plan_.units) total += unit.cost;
    const std::size_t limit = std::max<std::size_t>(1, total * num_kv_heads_ / (num_threads_ * kUnitsPerThread));
    const std::size_t num_whole = plan_.units.size();
    for (std::size_t u = 0; u < num_whole; ++u) {
      const AttentionUnit unit = plan_.units[u];
      const std::size_t num_parts = std::min((unit.cost + limit - 1) / limit, unit.tile_end / kMinTiles);
      if (num_parts <= 1) continue;
      for (std::size_t part = 0; part < num_parts; ++part) {
        const auto [begin, end] = split_evenly(unit.tile_end, part, num_parts);
        AttentionUnit piece = unit;
        piece.tile_begin = narrow(begin);
        piece.tile_end = narrow(end);
        piece.cost = narrow(unit.cost * (end - begin) / unit.tile_end);
        piece.split = true;
        if (part == 0) {
          plan_.units[u] = piece;
        } else {
          plan_.units.push_back(piece);
        }
      }
      for (std::size_t i = 0; i < unit.num_tokens; ++i) {
        AttentionToken& token = plan_.tokens[plan_.unit_tokens[unit.token_begin + i]];
        token.num_units = narrow(num_parts);
        token.partial = plan_.num_partials;
        plan_.num_partials += (static_cast<std::size_t>(token.position) / kAttentionTile + 1) * args_.num_heads;
      }
    }
  }

  const AttentionArgs& args_;
  std::size_t num_kv_heads_, num_threads_, group_;
  bool aligned_;
  AttentionPlan plan_;
};

}  // namespace

AttentionPlan plan_attention(const AttentionArgs& args, const KvCacheView& cache, std::size_t num_threads) {
  return Planner(args, cache, num_threads).plan();
}

}  // namespace foreword
