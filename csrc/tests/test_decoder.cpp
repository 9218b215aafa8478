// A pass over all layers as one region has the bits of the kernels called one by one.
#include "foreword/decoder.h"

#include <algorithm>
#include <memory>

#include "check.h"
#include "sources.h"

using namespace foreword;
using namespace foreword::test;

namespace {

constexpr std::size_t kVocab = 50, kHidden = 64, kInner = 96, kHeads = 4, kKvHeads = 2, kDim = 16, kLayers = 3;
constexpr std::size_t kAttention = kHeads * kDim, kQkv = kAttention + 2 * kKvHeads * kDim;
constexpr std::size_t kBlock = 8, kBlocks = 64, kPositions = 300;
constexpr float kEps = 1e-5f, kScale = 0.25f;

struct TestModel {
  std::vector<std::unique_ptr<PackedMatrix>> matrices;
  std::vector<std::vector<float>> vectors;
  std::vector<float> cos_sin;
  DecoderModel model{};

  TestModel(SourceFormat format, bool optional_parts, Context& context, std::mt19937& random) {
    model = {matrix(format, kVocab, kHidden, context, random), {}, kHeads, kKvHeads, kDim, kEps, kScale};
    cos_sin = random_floats(kPositions * kDim, random);
    const auto optional = [&](std::size_t size) { return optional_parts ? vector(size, random) : nullptr; };
    for (std::size_t i = 0; i < kLayers; ++i) {
      DecoderLayer layer{};
      layer.attention_norm = vector(kHidden, random);
      layer.qkv = matrix(format, kQkv, kHidden, context, random);
      layer.qkv_bias = optional(kQkv);
      layer.q_norm = optional(kDim);
      layer.k_norm = optional(kDim);
      layer.output = matrix(format, kHidden, kAttention, context, random);
      layer.output_bias = optional(kHidden);
      layer.mlp_norm = vector(kHidden, random);
      layer.gate_up = matrix(format, 2 * kInner, kHidden, context, random);
      layer.gate_up_bias = optional(2 * kInner);
      layer.down = matrix(format, kHidden, kInner, context, random);
      layer.down_bias = optional(kHidden);
      model.layers.push_back(layer);
    }
  }

  const float* vector(std::size_t size, std::mt19937& random) {
    vectors.push_back(random_floats(size, random));
    return vectors.back().data();
  }

  const PackedMatrix* matrix(SourceFormat format, std::size_t rows, std::size_t cols, Context& context,
                             std::mt19937& random) {
    const RandomSource source = random_source(format, rows, cols, random);
    const MatrixSource part = source.source();
    matrices.push_back(std::make_unique<PackedMatrix>(std::span(&part, 1), context));
    return matrices.back().get();
  }
};

// What a pass writes, starting from the same bytes everywhere.
struct State {
  std::vector<std::uint16_t> k, v;  // [layers][...]
  std::vector<float> hidden, last_hidden, qkv, attention, last_attention, gate_up;
  std::vector<KvCacheView> caches;

  explicit State(std::size_t num_tokens) {
    const std::size_t layer_size = kBlocks * kKvHeads * kDim * kBlock;
    k.resize(kLayers * layer_size);
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = static_cast<std::uint16_t>(0x3000 + i * 2654435761U % 0x900);
    v = k;
    for (std::size_t i = 0; i < kLayers; ++i) {
      caches.push_back({&k[i * layer_size], &v[i * layer_size], KvDtype::kF16, kBlocks, kKvHeads, kDim, kBlock});
    }
    hidden.assign(num_tokens * kHidden, 0);
    last_hidden = hidden;
    qkv.assign(num_tokens * kQkv, 0);
    attention.assign(num_tokens * kAttention, 0);
    last_attention = attention;
    gate_up.assign(num_tokens * 2 * kInner, 0);
  }

  DecoderBuffers buffers() {
    return {hidden.data(), last_hidden.data(), qkv.data(), attention.data(), last_attention.data(), gate_up.data()};
  }
};

// Sequences of a step, each with blocks of its own.
struct TestStep {
  std::vector<std::int32_t> token_ids, positions, slots, tables, starts{0}, lengths, rows;
  static constexpr std::size_t kMaxBlocks = 30;

  TestStep(const std::vector<std::size_t>& scheduled, const std::vector<std::size_t>& contexts, std::mt19937& random) {
    std::int32_t next_block = 0;
    for (std::size_t s = 0; s < scheduled.size(); ++s) {
      std::vector<std::int32_t> table(kMaxBlocks, 0);
      for (std::size_t b = 0; b * kBlock < contexts[s]; ++b) table[b] = next_block++;
      tables.insert(tables.end(), table.begin(), table.end());
      for (std::size_t p = contexts[s] - scheduled[s]; p < contexts[s]; ++p) {
        token_ids.push_back(static_cast<std::int32_t>(random() % kVocab));
        positions.push_back(static_cast<std::int32_t>(p));
        slots.push_back(table[p / kBlock] * static_cast<std::int32_t>(kBlock) + static_cast<std::int32_t>(p % kBlock));
      }
      starts.push_back(static_cast<std::int32_t>(token_ids.size()));
      lengths.push_back(static_cast<std::int32_t>(contexts[s]));
      rows.push_back(starts.back() - 1);
    }
    CHECK(static_cast<std::size_t>(next_block) <= kBlocks);
  }

  DecoderStep step(const TestModel& test, bool picks) const {
    DecoderStep made{};
    made.num_tokens = token_ids.size();
    made.token_ids = token_ids.data();
    made.positions = positions.data();
    made.slot_mapping = slots.data();
    made.cos_sin = test.cos_sin.data();
    made.num_positions = kPositions;
    made.num_sequences = lengths.size();
    made.max_blocks = kMaxBlocks;
    made.block_tables = tables.data();
    made.query_start_loc = starts.data();
    made.context_lens = lengths.data();
    made.rows = picks ? rows.data() : nullptr;
    made.num_rows = picks ? rows.size() : 0;
    return made;
  }
};

// The pass written out, each kernel a region of its own.
void run_by_kernels(Context& context, const TestModel& test, const DecoderStep& step, State& state) {
  const DecoderModel& model = test.model;
  const std::size_t num_tokens = step.num_tokens;
  embed(context, *model.embedding, {step.token_ids, num_tokens}, state.hidden.data(), kHidden);
  float *hidden = state.hidden.data(), *attention = state.attention.data();
  std::size_t num_rows = num_tokens;
  for (std::size_t i = 0; i < kLayers; ++i) {
    const DecoderLayer& layer = model.layers[i];
    linear(context, hidden, kHidden, num_tokens, {RowTransform::kRmsNorm, layer.attention_norm, kEps}, *layer.qkv,
           layer.qkv_bias, false, state.qkv.data(), kQkv);
    rope_store_kv(context,
                  {state.qkv.data(), num_tokens, kQkv, kHeads, step.positions, step.cos_sin, kPositions,
                   step.slot_mapping, layer.q_norm, layer.k_norm, kEps},
                  state.caches[i]);
    paged_attention(context,
                    {state.qkv.data(), step.num_sequences, kQkv, kHeads, step.block_tables, step.max_blocks,
                     step.query_start_loc, step.context_lens, kScale, attention, kAttention},
                    state.caches[i]);
    if (i + 1 == kLayers && step.rows != nullptr) {
      num_rows = step.num_rows;
      for (std::size_t r = 0; r < num_rows; ++r) {
        const std::size_t row = static_cast<std::size_t>(step.rows[r]);
        std::copy_n(&hidden[row * kHidden], kHidden, &state.last_hidden[r * kHidden]);
        std::copy_n(&attention[row * kAttention], kAttention, &state.last_attention[r * kAttention]);
      }
      hidden = state.last_hidden.data();
      attention = state.last_attention.data();
    }
    linear(context, attention, kAttention, num_rows, {}, *layer.output, layer.output_bias, true, hidden, kHidden);
    linear(context, hidden, kHidden, num_rows, {RowTransform::kRmsNorm, layer.mlp_norm, kEps}, *layer.gate_up,
           layer.gate_up_bias, false, state.gate_up.data(), 2 * kInner);
    linear(context, state.gate_up.data(), 2 * kInner, num_rows, {RowTransform::kSwiGlu}, *layer.down, layer.down_bias,
           true, hidden, kHidden);
  }
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

void check_equal_passes(Context& context, const TestModel& test, const TestStep& made, bool picks) {
  const DecoderStep step = made.step(test, picks);
  State expected(step.num_tokens), got(step.num_tokens);
  run_by_kernels(context, test, step, expected);
  run_decoder(context, test.model, got.caches.data(), got.buffers(), step);
  CHECK(same(got.k, expected.k) && same(got.v, expected.v));
  CHECK(same(got.hidden, expected.hidden) && same(got.last_hidden, expected.last_hidden));
  CHECK(same(got.gate_up, expected.gate_up) && same(got.qkv, expected.qkv));
}

const std::vector<std::vector<std::size_t>> kScheduled = {{1}, {2}, {1, 1, 1}, {1, 40, 3}};
const std::vector<std::vector<std::size_t>> kContexts = {{1}, {200}, {7, 130, 64}, {33, 40, 150}};

}  // namespace

TEST(decoder, has_the_bits_of_its_kernels) {
  std::mt19937 random(11);
  for (const InstructionSet isa : {InstructionSet::kScalar, detect_instruction_set()}) {
    for (const std::size_t num_threads : {1, 2, 3}) {
      Context context(num_threads, isa);
      for (const SourceFormat format : {SourceFormat::kF32, SourceFormat::kQ4_1, SourceFormat::kQ8_0}) {
        const TestModel test(format, format == SourceFormat::kQ8_0, context, random);
        for (std::size_t i = 0; i < kScheduled.size(); ++i) {
          const TestStep step(kScheduled[i], kContexts[i], random);
          check_equal_passes(context, test, step, false);
          check_equal_passes(context, test, step, true);
        }
      }
    }
  }
}

TEST(decoder, writes_keys_and_values_where_no_row_is_picked) {
  std::mt19937 random(12);
  Context context(2, detect_instruction_set());
  const TestModel test(SourceFormat::kQ4_1, true, context, random);
  TestStep made({5}, {9}, random);
  DecoderStep step = made.step(test, true);
  step.num_rows = 0;
  State expected(5), got(5);
  run_by_kernels(context, test, step, expected);
  run_decoder(context, test.model, got.caches.data(), got.buffers(), step);
  CHECK(same(got.k, expected.k) && same(got.v, expected.v));
}
