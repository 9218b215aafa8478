// A pass over all layers as one region has the bits of the kernels called one by one.
#include "foreword/decoder.h"

#include <algorithm>

#include "check.h"
#include "decoder_cases.h"
#include "foreword/sampling.h"

using namespace foreword;
using namespace foreword::test;

namespace {

constexpr std::size_t kWords = kVocab - 3;  // models pad their vocabulary

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
                     step.query_start_loc, step.context_lens, kAttentionScale, attention, kAttention},
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
  linear(context, hidden, kHidden, num_rows, {RowTransform::kRmsNorm, model.final_norm, kEps}, *model.head, nullptr,
         false, state.logits.data(), kVocab);
  const SampleRow greedy{0, 0, 1, 0, 0, 0, 0};
  for (std::size_t r = 0; r < num_rows; ++r) {
    sample(context, &state.logits[r * kVocab], 1, kWords, &greedy, &state.best[r]);
  }
}

void check_equal_passes(Context& context, const TestModel& test, const TestStep& made, bool picks, KvDtype dtype) {
  DecoderStep step = made.step(test, picks);
  State expected(step.num_tokens, dtype), got(step.num_tokens, dtype);
  step.logits = got.logits.data();
  step.best = got.best.data();
  step.num_words = kWords;
  run_by_kernels(context, test, step, expected);
  run_decoder(context, test.model, got.caches.data(), got.buffers(), step);
  CHECK(same(got.k, expected.k) && same(got.v, expected.v));
  CHECK(same(got.hidden, expected.hidden) && same(got.last_hidden, expected.last_hidden));
  CHECK(same(got.gate_up, expected.gate_up) && same(got.qkv, expected.qkv) && same(got.logits, expected.logits));
  CHECK(same(got.best, expected.best));
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
          for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kInt8, KvDtype::kInt16}) {
            check_equal_passes(context, test, step, false, dtype);
            check_equal_passes(context, test, step, true, dtype);
          }
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
  State expected(5, KvDtype::kInt8), got(5, KvDtype::kInt8);
  run_by_kernels(context, test, step, expected);
  run_decoder(context, test.model, got.caches.data(), got.buffers(), step);
  CHECK(same(got.k, expected.k) && same(got.v, expected.v));
}
