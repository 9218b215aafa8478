// Rotary embedding, KV writes and paged attention.
//
// Letters: T tokens of the step, S sequences, H query heads, J KV heads, D head dimension, B block size, N blocks.
//   qkv       [T, (H + 2J) * D] f32: query heads, then key heads, then value heads
//   k_cache   [N, J, D, B] f32 or f16: transposed within a block, so that a tile of keys is a matrix product operand
//   v_cache   [N, J, B, D] f32 or f16
// Int8 caches hold, for each block and KV head, the same of codes and behind them B scales, f32, one a token; what is
// stored of a value is code * scale. A block is one run of bytes whatever its dtype.
#pragma once

#include <cstddef>
#include <cstdint>

#include "foreword/context.h"

namespace foreword {

enum class KvDtype { kF32, kF16, kInt8 };

inline constexpr std::size_t kKvScaleBytes = sizeof(float);

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
// Int8: of a head's D values, with m the largest magnitude, scale = m / 127 and code = round(x * (127 / m)). Where 127
// / m is not finite, the values are as good as 0 and so is the scale; where a value is not finite, the scale is NaN.
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
inline constexpr std::size_t kAttentionTile = 128;
void paged_attention(Context& context, const AttentionArgs& args, const KvCacheView& cache);

// Copies whole blocks [sources[i]] -> [destinations[i]] of one layer, in order.
void copy_blocks(Context& context, const KvCacheView& cache, const std::int32_t* sources,
                 const std::int32_t* destinations, std::size_t num_copies);

}  // namespace foreword
