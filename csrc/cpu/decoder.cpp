#include "foreword/decoder.h"

#include <cstring>

#include "attention_stage.h"
#include "matmul_stage.h"
#include "sampling_stage.h"

namespace foreword {
namespace {

RopeStoreArgs rope_args(const DecoderModel& model, const DecoderBuffers& buffers, const DecoderStep& step,
                        std::size_t qkv_size) {
  RopeStoreArgs args{};
  args.qkv = buffers.qkv;
  args.num_tokens = step.num_tokens;
  args.qkv_stride = qkv_size;
  args.num_heads = model.num_heads;
  args.positions = step.positions;
  args.cos_sin = step.cos_sin;
  args.num_positions = step.num_positions;
  args.slot_mapping = step.slot_mapping;
  args.eps = model.eps;
  return args;
}

AttentionArgs attention_args(const DecoderModel& model, const DecoderBuffers& buffers, const DecoderStep& step,
                             std::size_t qkv_size) {
  AttentionArgs args{};
  args.qkv = buffers.qkv;
  args.num_sequences = step.num_sequences;
  args.qkv_stride = qkv_size;
  args.num_heads = model.num_heads;
  args.block_tables = step.block_tables;
  args.max_blocks = step.max_blocks;
  args.query_start_loc = step.query_start_loc;
  args.context_lens = step.context_lens;
  args.scale = model.scale;
  args.out = buffers.attention;
  args.out_stride = model.num_heads * model.head_dim;
  return args;
}

// One step. All threads go through run() together; each stage begins with what the barrier before it has completed.
class Pass {
 public:
  Pass(Context& context, const DecoderModel& model, const KvCacheView* caches, const DecoderBuffers& buffers,
       const DecoderStep& step, PreparedRows& prepared)
      : context_(context),
        model_(model),
        caches_(caches),
        buffers_(buffers),
        step_(step),
        prepared_(prepared),
        attention_(attention_args(model, buffers, step, qkv_size()), caches[0], context),
        best_(context, step.logits, model.head->rows(), step.best == nullptr ? 0 : num_wanted(step), step.num_words),
        rope_scratch_(context.pool.num_threads() * model.head_dim) {
    prepared.reserve(*model.head, step.num_tokens, context.pool.num_threads());
    for (const DecoderLayer& layer : model.layers) {
      for (const PackedMatrix* matrix : {layer.qkv, layer.output, layer.gate_up, layer.down}) {
        prepared.reserve(*matrix, step.num_tokens, context.pool.num_threads());
      }
    }
  }

  void run(std::size_t thread) {
    float *hidden = buffers_.hidden, *attended = buffers_.attention;
    std::size_t num_rows = step_.num_tokens;
    embed_stage(context_, *model_.embedding, step_.token_ids, num_rows, hidden, hidden_size(), thread);
    context_.pool.barrier();
    for (std::size_t index = 0; index < model_.layers.size(); ++index) {
      const DecoderLayer& layer = model_.layers[index];
      attend(layer, caches_[index], thread);
      if (index + 1 == model_.layers.size() && step_.rows != nullptr) {
        pick(thread);
        hidden = buffers_.last_hidden;
        attended = buffers_.last_attention;
        num_rows = step_.num_rows;
      }
      multiply(attended, attention_size(), num_rows, {}, *layer.output, layer.output_bias, true, hidden, thread);
      feed_forward(layer, hidden, num_rows, thread);
    }
    if (step_.logits == nullptr) return;
    const RowTransform norm{RowTransform::kRmsNorm, model_.final_norm, model_.eps};
    multiply(hidden, hidden_size(), num_rows, norm, *model_.head, nullptr, false, step_.logits, thread);
    for (std::size_t r = 0; r < best_.num_rows(); ++r) best_.work(thread, r);
  }

  // Once all threads have left run().
  void finish() const {
    for (std::size_t r = 0; r < best_.num_rows(); ++r) step_.best[r] = best_.token(r);
  }

 private:
  static std::size_t num_wanted(const DecoderStep& step) {
    return step.rows == nullptr ? step.num_tokens : step.num_rows;
  }
  std::size_t hidden_size() const { return model_.embedding->cols(); }
  std::size_t attention_size() const { return model_.num_heads * model_.head_dim; }
  std::size_t qkv_size() const { return attention_size() + 2 * model_.num_kv_heads * model_.head_dim; }

  void attend(const DecoderLayer& layer, const KvCacheView& cache, std::size_t thread) {
    const RowTransform norm{RowTransform::kRmsNorm, layer.attention_norm, model_.eps};
    multiply(buffers_.hidden, hidden_size(), step_.num_tokens, norm, *layer.qkv, layer.qkv_bias, false, buffers_.qkv,
             thread);
    RopeStoreArgs rope = rope_args(model_, buffers_, step_, qkv_size());
    rope.q_norm = layer.q_norm;
    rope.k_norm = layer.k_norm;
    rope_store_stage(context_, rope, cache, rope_scratch_.data(), thread);
    if (thread == 0) attention_.start(cache.k, cache.v);
    context_.pool.barrier();
    attention_.work(thread);
    context_.pool.barrier();
  }

  void feed_forward(const DecoderLayer& layer, float* hidden, std::size_t num_rows, std::size_t thread) {
    const RowTransform norm{RowTransform::kRmsNorm, layer.mlp_norm, model_.eps};
    multiply(hidden, hidden_size(), num_rows, norm, *layer.gate_up, layer.gate_up_bias, false, buffers_.gate_up,
             thread);
    multiply(buffers_.gate_up, layer.gate_up->rows(), num_rows, {RowTransform::kSwiGlu}, *layer.down, layer.down_bias,
             true, hidden, thread);
  }

  // A product whose rows lie without gaps, on both sides.
  void multiply(const float* x, std::size_t x_stride, std::size_t num_rows, RowTransform transform,
                const PackedMatrix& matrix, const float* bias, bool accumulate, float* out, std::size_t thread) {
    const LinearArgs args{x, x_stride, num_rows, transform, &matrix, bias, accumulate, out, matrix.rows()};
    linear_stage(context_, args, prepared_, thread);
    context_.pool.barrier();
  }

  // Copies the rows whose last layer is wanted together.
  void pick(std::size_t thread) {
    const auto [begin, end] = split_evenly(step_.num_rows, thread, context_.pool.num_threads());
    for (std::size_t r = begin; r < end; ++r) {
      const std::size_t row = static_cast<std::size_t>(step_.rows[r]);
      std::memcpy(buffers_.last_hidden + r * hidden_size(), buffers_.hidden + row * hidden_size(),
                  hidden_size() * sizeof(float));
      std::memcpy(buffers_.last_attention + r * attention_size(), buffers_.attention + row * attention_size(),
                  attention_size() * sizeof(float));
    }
    context_.pool.barrier();
  }

  Context& context_;
  const DecoderModel& model_;
  const KvCacheView* caches_;
  const DecoderBuffers& buffers_;
  const DecoderStep& step_;
  PreparedRows& prepared_;
  AttentionStage attention_;
  BestStage best_;
  std::vector<float> rope_scratch_;
};

}  // namespace

void run_decoder(Context& context, const DecoderModel& model, const KvCacheView* caches, const DecoderBuffers& buffers,
                 const DecoderStep& step) {
  thread_local PreparedRows rows;  // kept from step to step
  Pass pass(context, model, caches, buffers, step, rows);
  context.pool.run([&](std::size_t thread) { pass.run(thread); });
  pass.finish();
}

}  // namespace foreword
