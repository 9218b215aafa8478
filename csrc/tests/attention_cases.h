// Sequences, block pools and calls for the tests of attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "foreword/attention.h"
#include "half.h"

namespace foreword::test {

struct Shape {
  std::size_t heads, kv_heads, dim, block;
  KvDtype dtype;
};

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kScale = 0.37f;

// One sequence's queries, keys and values, position by position; keys and values as the cache holds them.
struct Sequence {
  std::size_t length;
  std::vector<float> queries, keys, values;  // [length, heads * D]

  Sequence(const Shape& shape, std::size_t length, unsigned seed) : length(length) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    queries.resize(length * shape.heads * shape.dim);
    keys.resize(length * shape.kv_heads * shape.dim);
    values.resize(keys.size());
    for (float& x : queries) x = normal(random);
    for (std::vector<float>* part : {&keys, &values}) {
      for (float& x : *part) {
        x = normal(random);
        if (shape.dtype == KvDtype::kF16) x = half_to_float(float_to_half(x));
      }
    }
  }
};

// A block pool whose slots hold NaN until written.
struct Pool {
  Shape shape;
  std::size_t num_blocks;
  std::vector<float> k32, v32;
  std::vector<std::uint16_t> k16, v16;

  Pool(const Shape& shape, std::size_t num_blocks) : shape(shape), num_blocks(num_blocks) {
    const std::size_t size = num_blocks * shape.kv_heads * shape.dim * shape.block;
    if (shape.dtype == KvDtype::kF32) {
      k32.assign(size, kNan);
      v32.assign(size, kNan);
    } else {
      k16.assign(size, 0x7e01);
      v16.assign(size, 0x7e01);
    }
  }

  void write(std::size_t slot, const float* key, const float* value) {
    const std::size_t block = slot / shape.block, offset = slot % shape.block;
    for (std::size_t j = 0; j < shape.kv_heads; ++j) {
      const std::size_t head = (block * shape.kv_heads + j) * shape.dim * shape.block;
      for (std::size_t d = 0; d < shape.dim; ++d) {
        const float k = key[j * shape.dim + d], v = value[j * shape.dim + d];
        const std::size_t at_k = head + d * shape.block + offset, at_v = head + offset * shape.dim + d;
        if (shape.dtype == KvDtype::kF32) {
          k32[at_k] = k;
          v32[at_v] = v;
        } else {
          k16[at_k] = float_to_half(k);
          v16[at_v] = float_to_half(v);
        }
      }
    }
  }

  KvCacheView view() {
    const bool wide = shape.dtype == KvDtype::kF32;
    return {wide ? static_cast<void*>(k32.data()) : k16.data(),
            wide ? static_cast<void*>(v32.data()) : v16.data(),
            shape.dtype,
            num_blocks,
            shape.kv_heads,
            shape.dim,
            shape.block};
  }
};

// Part of a sequence in one call: tokens [begin, end). The first blocks may be those of an earlier chunk of the call.
struct Chunk {
  const Sequence* sequence;
  std::size_t begin, end;
  std::size_t lender = 0, num_lent = 0;
};

// Runs one call over `chunks`, block tables drawn at random, and returns out [T, H * D]. `padding` widens rows by that
// much.
inline std::vector<float> attend(Context& context, const Shape& shape, const std::vector<Chunk>& chunks, unsigned seed,
                                 std::size_t padding = 0) {
  std::size_t num_blocks = 1, max_blocks = 1;
  for (const Chunk& chunk : chunks) {
    const std::size_t blocks = (chunk.end + shape.block - 1) / shape.block;
    num_blocks += blocks;
    max_blocks = std::max(max_blocks, blocks);
  }
  Pool pool(shape, num_blocks);
  std::vector<std::int32_t> order(num_blocks), tables(chunks.size() * max_blocks, -1), starts{0}, lengths;
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  std::size_t next = 0;
  const std::size_t width = (shape.heads + 2 * shape.kv_heads) * shape.dim + padding;
  const std::size_t query_width = shape.heads * shape.dim, kv_width = shape.kv_heads * shape.dim;
  std::vector<float> qkv;
  for (std::size_t s = 0; s < chunks.size(); ++s) {
    const Chunk& chunk = chunks[s];
    std::int32_t* const table = tables.data() + s * max_blocks;
    for (std::size_t b = 0; b * shape.block < chunk.end; ++b) {
      table[b] = b < chunk.num_lent ? tables[chunk.lender * max_blocks + b] : order[next++];
    }
    for (std::size_t p = 0; p < chunk.end; ++p) {
      const std::size_t slot = static_cast<std::size_t>(table[p / shape.block]) * shape.block + p % shape.block;
      pool.write(slot, chunk.sequence->keys.data() + p * kv_width, chunk.sequence->values.data() + p * kv_width);
    }
    for (std::size_t p = chunk.begin; p < chunk.end; ++p) {
      qkv.resize(qkv.size() + width, kNan);
      std::copy_n(chunk.sequence->queries.data() + p * query_width, query_width, qkv.end() - static_cast<long>(width));
    }
    starts.push_back(starts.back() + static_cast<std::int32_t>(chunk.end - chunk.begin));
    lengths.push_back(static_cast<std::int32_t>(chunk.end));
  }
  const std::size_t num_tokens = static_cast<std::size_t>(starts.back()), out_stride = query_width + padding;
  std::vector<float> wide(num_tokens * out_stride, 77.0f), out;
  const KvCacheView view = pool.view();
  paged_attention(context,
                  {qkv.data(), chunks.size(), width, shape.heads, tables.data(), max_blocks, starts.data(),
                   lengths.data(), kScale, wide.data(), out_stride},
                  view);
  for (std::size_t t = 0; t < num_tokens; ++t) {
    const auto row = wide.begin() + static_cast<long>(t * out_stride);
    out.insert(out.end(), row, row + static_cast<long>(query_width));
    for (std::size_t i = query_width; i < out_stride; ++i) CHECK(row[static_cast<long>(i)] == 77.0f);
  }
  return out;
}

inline void check_same(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK(a.size() == b.size());
  std::size_t differing = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differing += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  CHECK_MSG(differing == 0, "%zu of %zu floats differ", differing, a.size());
}

inline std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> all{InstructionSet::kScalar};
  if (detect_instruction_set() != InstructionSet::kScalar) all.push_back(detect_instruction_set());
  return all;
}

}  // namespace foreword::test
