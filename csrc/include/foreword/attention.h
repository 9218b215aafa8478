// Rotary embedding, KV writes and paged attention.
//
// Letters: T tokens of the step, S sequences, H query heads, J KV heads, D head dimension, B block size, N blocks.
//   qkv       [T, (H + 2J) * D] f32: query heads, then key heads, then value heads
//   k_cache   [N, J, D, B] f32 or f16: transposed within a block, so that a tile of keys is a matrix product operand
//   v_cache   [N, J, B, D] f32 or f16
// Int8 and int16 caches hold codes: what is stored of a value is code * scale. For each block and KV head, D and B
// even:
//   k_cache   [D/2, B, 2] codes: two dimensions of a token beside one another; then B scales, f32, one a token
//   v_cache   [B/2, D, 2] codes: two tokens of a dimension beside one another; then B scales
// since one instruction multiplies pairs and adds the two products. A block is one run of bytes whatever its dtype.
#pragma once

#include <cstddef>
#include <cstdint>

#include "foreword/context.h"

namespace foreword {

enum class KvDtype { kF32, kF16, kInt8, kInt16 };

[[gnu::always_inline]] inline bool stores_codes(KvDtype dtype) {
  return dtype == KvDtype::kInt8 || dtype == KvDtype::kInt16;
}

inline constexpr std::size_t kKvScaleBytes = sizeof(float);
inline constexpr float kMostInt8Code = 127, kMostInt16ValueCode = 8191;
inline constexpr double kCodeLength = 32767;  // of an int16 key, and of a query that meets codes

struct KvCacheView {  // one layer
  void* k;
  void* v;
  KvDtype dtype;
  std::size_t num_blocks, num_kv_heads, head_dim, block_size;

  // Of one KV head in one block of k, or of v.
  [[gnu::always_inline]] std::size_t head_bytes() const {  // so that no copy for another machine is linked
    switch (dtype) {
      case KvDtype::kF32:
        return head_dim * block_size * 4;
      case KvDtype::kF16:
        return head_dim * block_size * 2;
      case KvDtype::kInt8:
        return (head_dim + kKvScaleBytes) * block_size;
      case KvDtype::kInt16:
        return (2 * head_dim + kKvScaleBytes) * block_size;
    }
    return 0;
  }
};

struct RopeStoreArgs {
  float* qkv;  // q is normed and rotated in place; k and v are read
  std::size_t num_tokens, qkv_stride, num_heads;
  const std::int32_t* positions;  // [T]
  const float* cos_sin;           // [num_positions, D]: D/2 cosines, then D/2 sines
  std::size_t num_positions;
  const std::int32_t* slot_mapping;  // [T] block_id * B + offset
  const float* q_norm;               // null or [D]: RMS norm of each head before the rotation
  const float* k_norm;               // null or [D]
  float eps;
};

// Rotates pairs (x[i], x[i + D/2]); rounds k and v once to the cache's dtype (to nearest even) and writes them.
//
// Codes of a head of D values, with m the largest magnitude and l = sqrt(sum of squares), in double:
//   int8            scale = m / 127,   code = round(x * (127 / m))
//   int16, values   scale = m / 8191,  code = round(x * (8191 / m))
//   int16, keys     scale = l / 32767, code = round(x * (32767 / l))
// Where the bracket is not finite the values are as good as 0 and so is the scale; where a value is not finite the
// scale is NaN.
void rope_store_kv(Context& context, const RopeStoreArgs& args, const KvCacheView& cache);

struct AttentionArgs {
  const float* qkv;  // the query part is read
  std::size_t num_sequences, qkv_stride, num_heads;
  const std::int32_t* block_tables;  // [S, max_blocks]
  std::size_t max_blocks;
  const std::int32_t* query_start_loc;  // [S + 1]
  const std::int32_t* context_lens;     // [S]: positions present after this step's write
  float scale;
  float* out;  // [T, H * D]
  std::size_t out_stride;
};

// Causal attention: the i-th of a sequence's q scheduled tokens has position context_len - q + i and sees keys
// 0..position. Keys are reduced in fixed tiles of kAttentionTile positions counted from position 0, merged in ascending
// order; slots after a row's position are never read into its sums, whatever they hold (NaN included).
//
// Where keys and values are codes, queries and weights are rounded to codes too, as attention_codes.h says, and the
// sums are integers.
inline constexpr std::size_t kAttentionTile = 128;
void paged_attention(Context& context, const AttentionArgs& args, const KvCacheView& cache);

}  // namespace foreword
