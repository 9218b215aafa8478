#include "attention_plan.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "attention_tile.h"

namespace foreword {
namespace {

constexpr std::size_t kMaxRows = 192;     // queries, values and a packed tile fit a 512 KiB cache; packing costs 3 %
constexpr std::size_t kInPlaceRows = 12;  // see AttentionUnit::in_place
constexpr std::size_t kInPlaceBytes = 64 << 10;  // of a tile's keys: as many of its values lie beside them in the cache
constexpr std::size_t kRowsPerCost = 6;
constexpr std::size_t kUnitsPerThread = 3;  // at least, so that no thread waits long for the last unit
constexpr std::size_t kTolerance = 4;       // a unit may be larger by a quarter before it is cut
constexpr std::size_t kMinTiles = 2;        // of a unit that is cut: fewer, and merging shows
constexpr std::size_t kSharingRows = 48;    // a sequence of more rows uses what it reads well enough alone

std::uint32_t narrow(std::size_t value) {
  return static_cast<std::uint32_t>(value);
}

// A sequence of few rows: one unit, or several that share tiles with other sequences.
struct ShortSequence {
  const std::int32_t* table;
  std::size_t token_begin, num_tokens;  // into tokens
  std::size_t num_tiles, num_full;      // tiles it reads; of these, those that all its tokens see whole, less the last
};

class Planner {
 public:
  Planner(const AttentionArgs& args, const KvCacheView& cache, std::size_t num_threads)
      : args_(args),
        num_kv_heads_(cache.num_kv_heads),
        block_size_(cache.block_size),
        tile_bytes_(cache.head_bytes() * kAttentionTile / cache.block_size),
        num_threads_(num_threads) {
    group_ = args.num_heads / num_kv_heads_;
    // Vectors of up to 8 keys never cross a block, panels of 16 values never cross a row.
    aligned_ = cache.block_size % 8 == 0 && cache.head_dim % 16 == 0;
  }

  AttentionPlan plan() {
    for (std::size_t s = 0; s < args_.num_sequences; ++s) {
      const std::int32_t count = args_.query_start_loc[s + 1] - args_.query_start_loc[s];
      const std::size_t num_tiles = static_cast<std::size_t>(args_.context_lens[s] - 1) / kAttentionTile + 1;
      if (count > 0) total_ += static_cast<std::size_t>(count) * num_tiles;
    }
    for (std::size_t s = 0; s < args_.num_sequences; ++s) add_sequence(s);
    add_short_sequences();
    cut_units();
    place_partials();
    list_items();
    return std::move(plan_);
  }

 private:
  void add_sequence(std::size_t s) {
    const std::int32_t begin = args_.query_start_loc[s], end = args_.query_start_loc[s + 1];
    if (begin == end) return;
    const std::int32_t first_position = args_.context_lens[s] - (end - begin);
    const std::size_t first = plan_.tokens.size(), count = static_cast<std::size_t>(end - begin);
    for (std::int32_t i = 0; i < end - begin; ++i) plan_.tokens.push_back({begin + i, first_position + i, 0, 0});
    const std::int32_t* const table = args_.block_tables + s * args_.max_blocks;
    if (count * group_ <= kSharingRows) {
      const std::size_t num_tiles = plan_.tokens.back().num_tiles();
      short_.push_back({table, first, count, num_tiles, static_cast<std::size_t>(first_position) / kAttentionTile});
      return;
    }
    const std::size_t step = even_tokens(count, plan_.tokens.back().num_tiles());
    for (std::size_t i = 0; i < count; i += step) {
      const std::size_t num_tokens = std::min(step, count - i);
      const std::size_t token_begin = plan_.unit_tokens.size();
      list_tokens(first + i, num_tokens);
      add_unit(table, token_begin, 0, plan_.tokens[first + i + num_tokens - 1].num_tiles());
    }
  }

  // Tokens of each unit of a long sequence: evenly, and few enough that all threads have work. But no fewer than a
  // band, since each unit packs its tiles; what is then still too much for one thread is cut by tiles.
  std::size_t even_tokens(std::size_t count, std::size_t num_tiles) const {
    const std::size_t share = total_ * num_kv_heads_ / (num_threads_ * kUnitsPerThread);
    const std::size_t wanted =
        num_threads_ == 1 ? 1 : (count * num_tiles + share - 1) / std::max<std::size_t>(1, share);
    const std::size_t bands = std::max<std::size_t>(1, count * group_ / kBandRows);
    const std::size_t least = (count + tokens_per_unit() - 1) / tokens_per_unit();
    const std::size_t units = std::max(least, std::min(wanted, bands));
    return (count + units - 1) / units;
  }

  std::size_t tokens_per_unit() const { return std::max<std::size_t>(1, kMaxRows / group_); }

  void list_tokens(std::size_t begin, std::size_t count) {
    for (std::size_t i = begin; i < begin + count; ++i) plan_.unit_tokens.push_back(narrow(i));
  }

  // The unit of the tokens listed since token_begin.
  void add_unit(const std::int32_t* table, std::size_t token_begin, std::size_t tile_begin, std::size_t tile_end) {
    const std::size_t num_tokens = plan_.unit_tokens.size() - token_begin, rows = num_tokens * group_;
    const bool in_place = aligned_ && rows <= kInPlaceRows;
    const std::size_t num_heads = in_place ? heads_together(rows) : 1;
    const std::size_t cost = (tile_end - tile_begin) * ((rows + kRowsPerCost - 1) / kRowsPerCost + 1) * num_heads;
    plan_.units.push_back({table, narrow(token_begin), narrow(num_tokens), narrow(tile_begin), narrow(tile_end),
                           narrow(num_heads), narrow(cost), false, in_place});
    plan_.max_rows = std::max(plan_.max_rows, rows * num_heads);
    for (std::size_t i = token_begin; i < plan_.unit_tokens.size(); ++i) ++plan_.tokens[plan_.unit_tokens[i]].num_units;
  }

  // KV heads of an item in place: as many as fit a band and the cache, evenly.
  std::size_t heads_together(std::size_t rows) const {
    const std::size_t most = std::min(kBandRows / rows, std::max<std::size_t>(1, kInPlaceBytes / tile_bytes_));
    const std::size_t num_items = (num_kv_heads_ + most - 1) / most;
    return (num_kv_heads_ + num_items - 1) / num_items;
  }

  // Sequences with the same blocks in the same places read them together.
  void add_short_sequences() {
    // Only by the first block at first: where no two agree on it, that is all.
    std::sort(short_.begin(), short_.end(),
              [](const ShortSequence& a, const ShortSequence& b) { return a.table[0] < b.table[0]; });
    for (std::size_t i = 0, next; i < short_.size(); i = next) {
      for (next = i + 1; next < short_.size() && short_[next].table[0] == short_[i].table[0];) ++next;
      const std::span<ShortSequence> family(short_.data() + i, next - i);
      if (family.size() > 1) {
        std::sort(family.begin(), family.end(),
                  [this](const ShortSequence& a, const ShortSequence& b) { return comes_before(a, b); });
      }
      add_family(family, 0);
    }
  }

  std::size_t num_full_blocks(const ShortSequence& s) const { return s.num_full * kAttentionTile / block_size_; }

  // Some order by table in which tables that begin alike are neighbours; by bytes, since it is asked often.
  bool comes_before(const ShortSequence& a, const ShortSequence& b) const {
    const std::size_t in_a = num_full_blocks(a), in_b = num_full_blocks(b);
    const int order = std::memcmp(a.table, b.table, std::min(in_a, in_b) * sizeof(std::int32_t));
    return order < 0 || (order == 0 && in_a < in_b);
  }

  // Tiles, counted from 0, that lie in the same blocks for both.
  std::size_t num_common(const ShortSequence& a, const ShortSequence& b) const {
    const std::size_t tiles = std::min(a.num_full, b.num_full);
    const std::size_t blocks = (tiles * kAttentionTile + block_size_ - 1) / block_size_;
    if (std::memcmp(a.table, b.table, blocks * sizeof(std::int32_t)) == 0) return tiles;
    const auto differs = std::mismatch(a.table, a.table + blocks, b.table).first;
    return static_cast<std::size_t>(differs - a.table) * block_size_ / kAttentionTile;
  }

  // Units from tile `from` on of sequences, in the order of their tables, that have the tiles before in common.
  void add_family(std::span<const ShortSequence> family, std::size_t from) {
    const ShortSequence& first = family.front();
    if (family.size() == 1) {
      const std::size_t token_begin = plan_.unit_tokens.size();
      list_tokens(first.token_begin, first.num_tokens);
      add_unit(first.table, token_begin, from, first.num_tiles);
      return;
    }
    std::size_t common = first.num_full;
    for (std::size_t i = 1; i < family.size(); ++i) common = std::min(common, num_common(first, family[i]));
    if (common > from) add_shared(family, from, common);
    // Behind `common` at least two part ways. Runs that agree on the next tile go on together.
    for (std::size_t i = 0, next; i < family.size(); i = next) {
      for (next = i + 1; next < family.size() && num_common(family[i], family[next]) > common;) ++next;
      add_family(family.subspan(i, next - i), common);
    }
  }

  void add_shared(std::span<const ShortSequence> family, std::size_t tile_begin, std::size_t tile_end) {
    std::size_t token_begin = plan_.unit_tokens.size();
    for (const ShortSequence& member : family) {
      const std::size_t listed = plan_.unit_tokens.size() - token_begin;
      if (listed > 0 && listed + member.num_tokens > tokens_per_unit()) {
        add_unit(member.table, token_begin, tile_begin, tile_end);
        token_begin = plan_.unit_tokens.size();
      }
      list_tokens(member.token_begin, member.num_tokens);
    }
    add_unit(family.front().table, token_begin, tile_begin, tile_end);
  }

  // With fewer pieces than threads, fewer KV heads go together: shorter runs of memory cost less than a thread that
  // waits for the others.
  void part_heads(AttentionUnit& unit, std::size_t num_pieces) const {
    const std::size_t num_heads = std::max<std::size_t>(1, unit.num_heads * num_pieces / num_threads_);
    unit.cost = narrow(unit.cost * num_heads / unit.num_heads);
    unit.num_heads = narrow(num_heads);
  }

  // Cuts units that would keep one thread busy while the others are done.
  void cut_units() {
    if (num_threads_ == 1) return;
    std::size_t total = 0;
    for (const AttentionUnit& unit : plan_.units) total += unit.cost * num_kv_heads_ / unit.num_heads;
    const std::size_t limit = std::max<std::size_t>(1, total / (num_threads_ * kUnitsPerThread));
    const std::size_t num_whole = plan_.units.size();
    for (std::size_t u = 0; u < num_whole; ++u) {
      const std::size_t num_tiles = plan_.units[u].tile_end - plan_.units[u].tile_begin;
      const std::size_t least = (plan_.units[u].cost + limit - 1 - limit / kTolerance) / limit;
      const std::size_t num_parts = std::max<std::size_t>(1, std::min(least, num_tiles / kMinTiles));
      if (num_whole * num_parts < num_threads_) part_heads(plan_.units[u], num_whole * num_parts);
      if (num_parts == 1) continue;
      const AttentionUnit unit = plan_.units[u];
      for (std::size_t part = 0; part < num_parts; ++part) {
        const auto [begin, end] = split_evenly(num_tiles, part, num_parts);
        AttentionUnit piece = unit;
        piece.tile_begin = narrow(unit.tile_begin + begin);
        piece.tile_end = narrow(unit.tile_begin + end);
        piece.cost = narrow(unit.cost / num_parts);
        if (part == 0) {
          plan_.units[u] = piece;
        } else {
          plan_.units.push_back(piece);
        }
      }
      for (std::size_t i = 0; i < unit.num_tokens; ++i) {
        plan_.tokens[plan_.unit_tokens[unit.token_begin + i]].num_units += narrow(num_parts - 1);
      }
    }
  }

  // Room for the partial results of tokens with several units. The tokens of a unit all have one, or all have several.
  void place_partials() {
    for (AttentionToken& token : plan_.tokens) {
      if (token.num_units == 1) continue;
      token.partial = plan_.num_partials;
      plan_.num_partials += token.num_tiles() * args_.num_heads;
    }
    for (AttentionUnit& unit : plan_.units)
      unit.split = plan_.tokens[plan_.unit_tokens[unit.token_begin]].num_units > 1;
  }

  // Pieces of a unit cost the same, and go in the order in which they can go on from one another.
  void list_items() {
    for (std::size_t u = 0; u < plan_.units.size(); ++u) {
      const std::size_t num_heads = plan_.units[u].num_heads;
      for (std::size_t h = 0; h < num_kv_heads_; h += num_heads) {
        plan_.items.push_back({narrow(u), narrow(h), narrow(std::min(h + num_heads, num_kv_heads_))});
      }
    }
    std::stable_sort(plan_.items.begin(), plan_.items.end(), [this](const AttentionItem& a, const AttentionItem& b) {
      const AttentionUnit &of_a = plan_.units[a.unit], &of_b = plan_.units[b.unit];
      return of_a.cost > of_b.cost || (of_a.cost == of_b.cost && of_a.tile_begin < of_b.tile_begin);
    });
  }

  const AttentionArgs& args_;
  std::size_t num_kv_heads_, block_size_, tile_bytes_, num_threads_, group_;
  bool aligned_;
  std::size_t total_ = 0;  // tokens times tiles of the step
  std::vector<ShortSequence> short_;
  AttentionPlan plan_;
};

}  // namespace

AttentionPlan plan_attention(const AttentionArgs& args, const KvCacheView& cache, std::size_t num_threads) {
  return Planner(args, cache, num_threads).plan();
}

}  // namespace foreword
