// Sequences, block pools and calls for the tests of attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "check.h"
#include "foreword/attention.h"
#include "half.h"

namespace foreword::test {

inline constexpr KvDtype kDtypes[] = {KvDtype::kF32, KvDtype::kF16, KvDtype::kInt8, KvDtype::kInt16};

struct Shape {
  std::size_t heads, kv_heads, dim, block;
  KvDtype dtype;

  Shape(std::size_t heads, std::size_t kv_heads, std::size_t dim, std::size_t block, KvDtype dtype)
      : heads(heads), kv_heads(kv_heads), dim(dim), block(block), dtype(dtype) {
    if (stores_codes(dtype)) this->block += block % 2;  // codes come in pairs
  }
};

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kScale = 0.37f;

// One sequence's queries, keys and values, position by position; keys and values as the cache holds them.
struct Sequence {
  std::size_t length;
  std::vector<float> queries, keys, values;     // [length, heads * D]
  std::vector<float> key_scales, value_scales;  // [length, J], of codes

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
    if (!stores_codes(shape.dtype)) return;
    key_scales = round_to_codes(keys, shape, shape.dtype == KvDtype::kInt8 ? 0 : kCodeLength, random);
    value_scales = round_to_codes(values, shape, 0, random);
  }

 private:
  // Scales that may be any, as long as the codes stay within their bounds: of length `length`, or where it is 0 as
  // large as a code can be.
  static std::vector<float> round_to_codes(std::vector<float>& values, const Shape& shape, double length,
                                           std::mt19937& random) {
    const float most = shape.dtype == KvDtype::kInt8 ? kMostInt8Code : kMostInt16ValueCode;
    std::uniform_real_distribution<float> factor(0.5f, 2.5f);
    std::vector<float> scales(values.size() / shape.dim);
    for (std::size_t i = 0; i < scales.size(); ++i) {
      float* const head = values.data() + i * shape.dim;
      double squares = 0;
      for (std::size_t d = 0; d < shape.dim; ++d) squares += static_cast<double>(head[d]) * head[d];
      // 1 / most cuts off what is above 1 to 2.5, of values about as large as that.
      scales[i] = factor(random) * (length > 0 ? static_cast<float>(2 * std::sqrt(squares) / length) : 1 / most);
      for (std::size_t d = 0; d < shape.dim; ++d) {
        const float code = std::nearbyint(head[d] / scales[i]);
        head[d] = scales[i] * (length > 0 ? code : std::clamp(code, -most, most));
      }
    }
    return scales;
  }
};

// A block pool whose slots hold NaN until written.
struct Pool {
  Shape shape;
  std::size_t num_blocks;
  std::vector<std::uint8_t> k, v;

  Pool(const Shape& shape, std::size_t num_blocks) : shape(shape), num_blocks(num_blocks) {
    k.assign(num_blocks * shape.kv_heads * view().head_bytes(), 0xff);  // a NaN in f32 and in f16
    v = k;
  }

  void write(std::size_t slot, const Sequence& sequence, std::size_t position) {
    for (std::size_t j = 0; j < shape.kv_heads; ++j) {
      const std::size_t row = position * shape.kv_heads + j;
      const float* const key = sequence.keys.data() + row * shape.dim;
      const float* const value = sequence.values.data() + row * shape.dim;
      const std::size_t head = (slot / shape.block * shape.kv_heads + j) * view().head_bytes();
      if (stores_codes(shape.dtype)) {
        const std::size_t offset = slot % shape.block;
        write_codes(k, head, offset, key, sequence.key_scales[row],
                    [&](std::size_t d) { return (d / 2 * shape.block + offset) * 2 + d % 2; });
        write_codes(v, head, offset, value, sequence.value_scales[row],
                    [&](std::size_t d) { return (offset / 2 * shape.dim + d) * 2 + offset % 2; });
        continue;
      }
      for (std::size_t d = 0; d < shape.dim; ++d) {
        put(k, head, d * shape.block + slot % shape.block, key[d]);
        put(v, head, slot % shape.block * shape.dim + d, value[d]);
      }
    }
  }

  KvCacheView view() { return {k.data(), v.data(), shape.dtype, num_blocks, shape.kv_heads, shape.dim, shape.block}; }

 private:
  void put(std::vector<std::uint8_t>& cache, std::size_t head, std::size_t element, float value) {
    if (shape.dtype == KvDtype::kF32) {
      std::memcpy(cache.data() + head + element * 4, &value, 4);
    } else {
      const std::uint16_t half = float_to_half(value);
      std::memcpy(cache.data() + head + element * 2, &half, 2);
    }
  }

  template <class PlaceOf>
  void write_codes(std::vector<std::uint8_t>& cache, std::size_t head, std::size_t offset, const float* x, float scale,
                   PlaceOf place_of) {
    const std::size_t size = shape.dtype == KvDtype::kInt8 ? 1 : 2;
    for (std::size_t d = 0; d < shape.dim; ++d) {
      if (!std::isfinite(x[d])) scale = kNan;
    }
    for (std::size_t d = 0; d < shape.dim; ++d) {
      const auto code = static_cast<std::int16_t>(std::isnan(scale) ? 0.0f : std::nearbyint(x[d] / scale));
      const auto narrow = static_cast<std::int8_t>(code);
      std::memcpy(cache.data() + head + place_of(d) * size, size == 1 ? static_cast<const void*>(&narrow) : &code,
                  size);
    }
    std::memcpy(cache.data() + head + shape.dim * shape.block * size + offset * kKvScaleBytes, &scale, kKvScaleBytes);
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
  const std::size_t query_width = shape.heads * shape.dim;
  std::vector<float> qkv;
  for (std::size_t s = 0; s < chunks.size(); ++s) {
    const Chunk& chunk = chunks[s];
    std::int32_t* const table = tables.data() + s * max_blocks;
    for (std::size_t b = 0; b * shape.block < chunk.end; ++b) {
      table[b] = b < chunk.num_lent ? tables[chunk.lender * max_blocks + b] : order[next++];
    }
    for (std::size_t p = 0; p < chunk.end; ++p) {
      const std::size_t slot = static_cast<std::size_t>(table[p / shape.block]) * shape.block + p % shape.block;
      pool.write(slot, *chunk.sequence, p);
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
