// Sequences that share blocks read them once, and nobody can tell.
#include <cmath>
#include <random>

#include "attention_cases.h"
#include "attention_tile.h"

using namespace foreword;
using namespace foreword::test;

namespace {

// A sequence that agrees with `other` in its first `prefix` positions.
Sequence fork(const Shape& shape, const Sequence& other, std::size_t prefix, std::size_t length, unsigned seed) {
  Sequence sequence(shape, length, seed);
  const long width = static_cast<long>(prefix * shape.kv_heads * shape.dim);
  std::copy(other.keys.begin(), other.keys.begin() + width, sequence.keys.begin());
  std::copy(other.values.begin(), other.values.begin() + width, sequence.values.begin());
  for (auto scales : {&Sequence::key_scales, &Sequence::value_scales}) {
    if (!stores_codes(shape.dtype)) continue;
    const auto first = (other.*scales).begin();
    std::copy(first, first + static_cast<long>(prefix * shape.kv_heads), (sequence.*scales).begin());
  }
  return sequence;
}

// Tiles that all units of a step of single tokens read.
std::size_t tiles_read(const std::vector<std::vector<std::int32_t>>& tables, const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> flat, starts{0};
  for (const auto& table : tables) {
    flat.insert(flat.end(), table.begin(), table.end());
    starts.push_back(starts.back() + 1);
  }
  AttentionArgs args{};
  args.num_sequences = tables.size();
  args.num_heads = 3;
  args.block_tables = flat.data();
  args.max_blocks = tables[0].size();
  args.query_start_loc = starts.data();
  args.context_lens = lengths.data();
  std::size_t tiles = 0;
  for (const AttentionUnit& unit : plan_attention(args, {nullptr, nullptr, KvDtype::kF32, 100, 1, 64, 64}, 1).units) {
    tiles += unit.tile_end - unit.tile_begin;
  }
  return tiles;
}

}  // namespace

TEST(attention_sharing, common_tiles_are_read_once) {  // a tile is two blocks of 64
  CHECK(tiles_read({{1, 2, 3, 4, 5, 6}}, {384}) == 3);
  CHECK(tiles_read({{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}}, {384, 384}) == 6);
  CHECK(tiles_read({{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 7, 8}}, {384, 384}) == 4);
  CHECK(tiles_read({{1, 2, 3, 4, 5, 6}, {1, 2, 3, 9, 7, 8}}, {384, 384}) == 5);  // half a tile is not shared
  CHECK(tiles_read({{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}}, {384, 384}) == 4);  // the last is each one's own
  CHECK(tiles_read({{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}}, {257, 256}) ==
        4);  // the second holds the last key of one of them
  CHECK(tiles_read({{9, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}}, {384, 384}) == 6);  // same blocks, another start
  CHECK(tiles_read({{1, 2, 3, 4, 5, 6}, {1, 2, 7, 8, 9, 10}, {1, 2, 7, 8, 11, 12}}, {384, 384, 384}) ==
        6);  // 1 for all, 2 for the first, 1 for the others, 1 for each of them
}

TEST(attention_sharing, threads_share_a_short_prompt_by_rows_and_a_single_row_by_tiles) {
  const std::vector<std::int32_t> table(127, 1);
  for (const std::int32_t tokens : {32, 1}) {
    const std::vector<std::int32_t> starts{0, tokens}, lengths{2032};
    AttentionArgs args{};
    args.num_sequences = 1;
    args.num_heads = 9;
    args.block_tables = table.data();
    args.max_blocks = table.size();
    args.query_start_loc = starts.data();
    args.context_lens = lengths.data();
    const AttentionPlan plan = plan_attention(args, {nullptr, nullptr, KvDtype::kF16, 2, 3, 64, 16}, 2);
    CHECK(plan.items.size() == 6);  // 2 units for each of 3 KV heads, or 6 for all of them
    CHECK(plan.units.size() == (tokens == 1 ? 6U : 2U));
    for (const AttentionUnit& unit : plan.units) {
      CHECK(unit.split == (tokens == 1));
      CHECK(unit.num_heads == (tokens == 1 ? 3U : 1U));
      const std::size_t num_tiles = unit.tile_end - unit.tile_begin;
      CHECK(tokens == 1 ? num_tiles == 2 || num_tiles == 3 : num_tiles == 16);
    }
    for (std::size_t i = 1; i < plan.items.size(); ++i) {  // those that can go on from others come behind them
      const AttentionUnit &before = plan.units[plan.items[i - 1].unit], &unit = plan.units[plan.items[i].unit];
      CHECK(before.tile_begin <= unit.tile_begin);
    }
    CHECK((plan.num_partials == 0) == (tokens == 32));
  }
}

TEST(attention_sharing, a_row_of_few_tiles_is_cut_by_heads_where_a_thread_would_have_nothing_to_do) {
  const std::vector<std::int32_t> table(64, 1), starts{0, 1, 2};
  const auto items = [&](std::size_t sequences, std::int32_t length, std::size_t num_threads) {
    std::vector<std::int32_t> tables;
    for (std::size_t i = 0; i < sequences * table.size(); ++i) tables.push_back(static_cast<std::int32_t>(i));
    const std::vector<std::int32_t> lengths(sequences, length);
    AttentionArgs args{};
    args.num_sequences = sequences;
    args.num_heads = 9;
    args.block_tables = tables.data();
    args.max_blocks = table.size();
    args.query_start_loc = starts.data();
    args.context_lens = lengths.data();
    const KvCacheView cache{nullptr, nullptr, KvDtype::kF16, 128, 3, 64, 16};
    return plan_attention(args, cache, num_threads).items.size();
  };
  CHECK(items(1, 100, 1) == 1);
  CHECK(items(1, 100, 2) == 3);  // a tile: each KV head alone
  CHECK(items(1, 380, 2) == 3);  // three tiles, which are not cut
  CHECK(items(1, 640, 2) == 2);  // five are, and then each thread has all heads of a part
  CHECK(items(1, 640, 4) == 6);
  CHECK(items(2, 100, 2) == 2);  // a sequence for each thread
}

TEST(attention_sharing, sequences_that_share_blocks_have_the_bits_they_have_alone) {
  for (const InstructionSet isa : instruction_sets()) {
    for (const KvDtype dtype : kDtypes) {
      for (const std::size_t block : {16U, 24U}) {
        const Shape shape{6, 2, 32, block, dtype};
        // A family tree: b and c leave a at 480, d leaves c at 768, e is c's whole length and more; f has nothing of
        // theirs.
        const Sequence a(shape, 1000, 20), b = fork(shape, a, 480, 700, 21), c = fork(shape, a, 480, 900, 22);
        const Sequence d = fork(shape, c, 768, 1100, 23), e = fork(shape, c, 888, 1400, 24), f(shape, 300, 25);
        const std::vector<Chunk> chunks{{&a, 999, 1000},
                                        {&f, 200, 300},
                                        {&b, 698, 700, 0, 480 / block},
                                        {&c, 899, 900, 0, 480 / block},
                                        {&d, 1099, 1100, 3, 768 / block},
                                        {&e, 1390, 1400, 3, 888 / block},
                                        {&a, 511, 512, 0, 512 / block},
                                        {&a, 384, 385, 0, 384 / block}};
        Context one(1, isa);
        std::vector<float> expected;
        for (const Chunk& chunk : chunks) {
          const std::vector<float> part = attend(one, shape, {{chunk.sequence, chunk.begin, chunk.end}}, 1);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        for (const std::size_t threads : {1U, 2U, 5U}) {
          Context context(threads, isa);
          for (unsigned round = 0; round < 3; ++round) check_same(attend(context, shape, chunks, round), expected);
        }
      }
    }
  }
}

TEST(attention_sharing, many_streams_over_one_prefix_have_the_bits_they_have_alone) {
  for (const InstructionSet isa : instruction_sets()) {
    const Shape shape{9, 3, 64, 16, KvDtype::kF16};
    const Sequence base(shape, 640, 26);
    std::vector<Sequence> streams;
    for (unsigned i = 0; i < 40; ++i) streams.push_back(fork(shape, base, 512, 513 + i * 3, 27 + i));
    std::vector<Chunk> chunks;
    std::vector<float> expected;
    Context one(1, isa), two(2, isa);
    for (const Sequence& stream : streams) {
      chunks.push_back({&stream, stream.length - 1, stream.length, 0, 32});
      const std::vector<float> part = attend(one, shape, {{&stream, stream.length - 1, stream.length}}, 1);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    chunks[0].num_lent = 0;
    check_same(attend(two, shape, chunks, 5), expected);
  }
}

// Sums taken up in two steps, as when a unit ends before the tiles behind it are done, are those of one step.
TEST(attention_sharing, partial_results_merged_in_parts_have_the_bits_of_one_merge) {
  constexpr std::size_t kTiles = 4, kHeads = 6, kDim = 40;
  std::mt19937 random(31);
  std::normal_distribution<float> normal;
  for (const InstructionSet isa : instruction_sets()) {
    const AttentionToken token{0, kTiles * kAttentionTile - 1, 0, 2};
    AttentionProblem problem{};
    problem.cache.head_dim = kDim;
    problem.cache.num_kv_heads = 2;
    problem.group = kHeads / 2;
    problem.padded_dim = (kDim + kPanel - 1) / kPanel * kPanel;
    problem.partial_floats = problem.padded_dim + kPanel;
    problem.args.num_heads = kHeads;
    problem.args.out_stride = kHeads * kDim;
    problem.tokens = &token;
    std::vector<float> partials(kTiles * kHeads * problem.partial_floats);
    for (float& value : partials) value = normal(random);
    for (std::size_t row = 0; row < kTiles * kHeads; ++row) {
      float& sum = partials[row * problem.partial_floats + problem.padded_dim + 1];
      sum = std::abs(sum) + 1;
    }
    std::vector<std::vector<float>> found;
    for (const std::size_t cut : {kTiles, std::size_t{2}, std::size_t{3}}) {
      std::vector<float> rows = partials, out(kHeads * kDim);
      problem.partials = rows.data();
      problem.args.out = out.data();
      for (std::size_t kv_head = 0; kv_head < 2; ++kv_head) {
        attention_kernels(isa).merge(problem, token, kv_head, 1, cut);
        if (cut < kTiles) attention_kernels(isa).merge(problem, token, kv_head, cut, kTiles);
      }
      found.push_back(out);
    }
    for (const std::vector<float>& parts : found) check_same(parts, found[0]);
    CHECK(found[0][0] != 0);
  }
}

// The costly units go first: here the streams' own tiles, which can't go on from the one tile that they share.
TEST(attention_sharing, units_done_before_those_in_front_of_them_leave_the_same_bits) {
  for (const InstructionSet isa : instruction_sets()) {
    for (const KvDtype dtype : kDtypes) {
      const Shape shape{6, 2, 32, 16, dtype};
      const Sequence a(shape, 1400, 28), b = fork(shape, a, 128, 1300, 29), c = fork(shape, b, 256, 700, 30);
      const std::vector<Chunk> chunks{{&a, 1398, 1400}, {&b, 1299, 1300, 0, 8}, {&c, 699, 700, 1, 16}};
      Context one(1, isa), two(2, isa);
      std::vector<float> expected;
      for (const Chunk& chunk : chunks) {
        const std::vector<float> part = attend(one, shape, {{chunk.sequence, chunk.begin, chunk.end}}, 1);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      for (Context* context : {&one, &two}) check_same(attend(*context, shape, chunks, 2), expected);
    }
  }
}

TEST(attention_sharing, few_rows_take_the_kv_heads_together_that_fit_the_cache) {
  const std::vector<std::int32_t> table(10, 1), starts{0, 1}, lengths{100};
  const auto heads_of = [&](std::size_t kv_heads, std::size_t group, std::size_t dim, KvDtype dtype) {
    AttentionArgs args{};
    args.num_sequences = 1;
    args.num_heads = kv_heads * group;
    args.block_tables = table.data();
    args.max_blocks = table.size();
    args.query_start_loc = starts.data();
    args.context_lens = lengths.data();
    std::vector<std::size_t> sizes;
    std::uint32_t next = 0;
    for (const AttentionItem& item : plan_attention(args, {nullptr, nullptr, dtype, 2, kv_heads, dim, 16}, 1).items) {
      CHECK(item.head_begin == next);
      next = item.head_end;
      sizes.push_back(item.num_heads());
    }
    CHECK(next == kv_heads);
    return sizes;
  };
  CHECK((heads_of(3, 3, 64, KvDtype::kF16) == std::vector<std::size_t>{3}));
  CHECK((heads_of(8, 4, 128, KvDtype::kF16) == std::vector<std::size_t>{2, 2, 2, 2}));
  CHECK((heads_of(5, 1, 64, KvDtype::kF16) == std::vector<std::size_t>{3, 2}));
  CHECK((heads_of(32, 1, 64, KvDtype::kF16) == std::vector<std::size_t>(8, 4)));
  CHECK((heads_of(8, 12, 16, KvDtype::kInt8) == std::vector<std::size_t>{4, 4}));  // a band is 48 rows
  CHECK((heads_of(2, 13, 64, KvDtype::kF16) == std::vector<std::size_t>{1, 1}));   // packed
  CHECK((heads_of(2, 1, 512, KvDtype::kF32) == std::vector<std::size_t>{1, 1}));
}
