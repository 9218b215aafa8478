// A whole pass over the layers of a decoder as one parallel region: the kernels of matrix.h and attention.h, called in
// the order of a llama layer, with a barrier between two instead of a region each. Same bits as the kernels one by one.
//
// Letters: T tokens of the step, R rows picked, H query heads, J KV heads, D head dimension, E hidden size, I
// intermediate size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "foreword/attention.h"
#include "foreword/matrix.h"

namespace foreword {

struct DecoderLayer {
  const float* attention_norm;  // [E]
  const PackedMatrix* qkv;      // [(H + 2J) * D, E]
  const float* qkv_bias;        // null or [(H + 2J) * D]
  const float* q_norm;          // null or [D]
  const float* k_norm;          // null or [D]
  const PackedMatrix* output;   // [E, H * D]
  const float* output_bias;     // null or [E]
  const float* mlp_norm;        // [E]
  const PackedMatrix* gate_up;  // [2I, E]
  const float* gate_up_bias;    // null or [2I]
  const PackedMatrix* down;     // [E, I]
  const float* down_bias;       // null or [E]
};

struct DecoderModel {
  const PackedMatrix* embedding;  // [V, E]
  std::vector<DecoderLayer> layers;
  const float* final_norm;   // [E]
  const PackedMatrix* head;  // [V, E]
  std::size_t num_heads, num_kv_heads, head_dim;
  float eps, scale;
};

// Activations; rows without gaps. `last_` holds the rows picked.
struct DecoderBuffers {
  float *hidden, *last_hidden;        // [T, E], [R, E]
  float* qkv;                         // [T, (H + 2J) * D]
  float *attention, *last_attention;  // [T, H * D], [R, H * D]
  float* gate_up;                     // [T, 2I]
};

struct DecoderStep {
  std::size_t num_tokens;
  const std::int32_t* token_ids;  // [T]
  // As in RopeStoreArgs and AttentionArgs.
  const std::int32_t *positions, *slot_mapping;  // [T]
  const float* cos_sin;
  std::size_t num_positions;
  std::size_t num_sequences, max_blocks;
  const std::int32_t *block_tables, *query_start_loc, *context_lens;
  // Rows wanted of the last layer, whose output and MLP are computed for them alone; null: all.
  const std::int32_t* rows;  // [R]
  std::size_t num_rows;
  float* logits;  // null, or [T, V], or [R, V] where rows are picked: what the head makes of the hidden states
  // Null, or [T] or [R]: the first of the largest of each row's first num_words logits, NaN being none.
  std::int32_t* best;
  std::size_t num_words;
};

// Writes K and V of every layer to `caches` [layers], which are of one shape, and the hidden states before the final
// norm to `hidden` [T, E], or `last_hidden` [R, E] where rows are picked, and their logits and the best of them where
// they are wanted.
void run_decoder(Context& context, const DecoderModel& model, const KvCacheView* caches, const DecoderBuffers& buffers,
                 const DecoderStep& step);

}  // namespace foreword
