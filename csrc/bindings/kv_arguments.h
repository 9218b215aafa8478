// Checks of the arguments that say where keys and values lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "binding.h"
#include "foreword/attention.h"

namespace foreword::bindings {

using Cache = nb::ndarray<nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using ConstCache = nb::ndarray<nb::ro, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Ids = Vector<const std::int32_t>;

inline std::string text(std::size_t value) {
  return std::to_string(value);
}

inline KvDtype dtype_of(const char* argument, nb::dlpack::dtype dtype) {
  if (dtype == nb::dtype<float>()) return KvDtype::kF32;
  if (dtype == nb::dlpack::dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1}) return KvDtype::kF16;
  if (dtype == nb::dtype<std::int8_t>()) return KvDtype::kInt8;
  if (dtype == nb::dtype<std::int16_t>()) return KvDtype::kInt16;
  fail(argument, "float32, float16, int16 or int8",
       "dtype code " + text(dtype.code) + " of " + text(dtype.bits) + " bits");
}

// k is [N, J, D, B], v is [N, J, B, D]; int8 has D + 4 for D, and int16 D + 2, which counts a head's scales in codes.
// The kernels that only read take the same view.
template <class Array>
KvCacheView view_of(const Array& k, const Array& v) {
  const KvDtype dtype = dtype_of("k_cache", k.dtype());
  if (dtype_of("v_cache", v.dtype()) != dtype) fail("v_cache", "the dtype of k_cache", "another");
  const std::size_t axes_of_v[] = {0, 1, 3, 2};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    require_size("k_cache", "at least one, so the first axis that is 0 had", 1, k.shape(axis) == 0 ? 0 : 1);
    require_size("v_cache", "as axis " + text(axes_of_v[axis]), k.shape(axis), v.shape(axes_of_v[axis]));
  }
  const std::size_t beside = stores_codes(dtype) ? kKvScaleBytes / k.itemsize() : 0;
  if (k.shape(2) <= beside) fail("k_cache", "more than the " + text(beside) + " codes of a scale", text(k.shape(2)));
  if (beside > 0 && (k.shape(2) % 2 != 0 || k.shape(3) % 2 != 0)) {
    fail("k_cache", "codes in pairs: an even head dimension and block size",
         text(k.shape(2) - beside) + " and " + text(k.shape(3)));
  }
  return {const_cast<void*>(static_cast<const void*>(k.data())),
          const_cast<void*>(static_cast<const void*>(v.data())),
          dtype,
          k.shape(0),
          k.shape(1),
          k.shape(2) - beside,
          k.shape(3)};
}

// H of a [T, (H + 2J) * D] array.
template <class Array>
std::size_t num_query_heads(const Array& qkv, const KvCacheView& cache) {
  const std::size_t heads = qkv.shape(1) / cache.head_dim, kv_heads = cache.num_kv_heads;
  const bool fits =
      qkv.shape(1) % cache.head_dim == 0 && heads > 2 * kv_heads && (heads - 2 * kv_heads) % kv_heads == 0;
  if (!fits) {
    fail("qkv", "a whole number of query heads for each of " + text(kv_heads) + " KV heads of " + text(cache.head_dim),
         text(qkv.shape(1)) + " columns");
  }
  return heads - 2 * kv_heads;
}

// A copy: Python may change its array while the GIL is released, and these index memory.
inline std::vector<std::int32_t> checked_ids(const char* argument, const Ids& ids, std::size_t count) {
  std::vector<std::int32_t> copy(ids.data(), ids.data() + ids.shape(0));
  for (std::size_t i = 0; i < copy.size(); ++i) {
    if (copy[i] < 0 || static_cast<std::size_t>(copy[i]) >= count) {
      fail(std::string(argument) + "[" + text(i) + "]", "0 to " + text(count - 1), std::to_string(copy[i]));
    }
  }
  return copy;
}

// Copies of what says which tokens see which blocks, checked.
struct CheckedBatch {
  std::vector<std::int32_t> query_start_loc, context_lens, block_tables;

  CheckedBatch(const Rows<const std::int32_t>& tables, const Ids& starts, const Ids& lengths, std::size_t num_tokens,
               const KvCacheView& cache) {
    const std::size_t num_sequences = lengths.shape(0), max_blocks = tables.shape(1);
    require_size("query_start_loc", "sequences + 1,", num_sequences + 1, starts.shape(0));
    require_size("block_tables", "sequences", num_sequences, tables.shape(0));
    const std::size_t stride = rows_stride("block_tables", tables);
    query_start_loc.assign(starts.data(), starts.data() + starts.shape(0));
    context_lens.assign(lengths.data(), lengths.data() + num_sequences);
    block_tables.resize(num_sequences * max_blocks);
    check_ends(num_tokens);
    for (std::size_t s = 0; s < num_sequences; ++s) {
      check_lengths(s, max_blocks, cache.block_size);
      copy_table(s, tables.data() + s * stride, max_blocks, cache);
    }
  }

 private:
  void check_ends(std::size_t num_tokens) const {
    if (query_start_loc.front() != 0) fail("query_start_loc[0]", "0", std::to_string(query_start_loc.front()));
    if (query_start_loc.back() < 0 || static_cast<std::size_t>(query_start_loc.back()) != num_tokens) {
      fail("query_start_loc", "to end with the rows of qkv, " + text(num_tokens),
           std::to_string(query_start_loc.back()));
    }
  }

  void check_lengths(std::size_t s, std::size_t max_blocks, std::size_t block_size) const {
    const std::int64_t scheduled = static_cast<std::int64_t>(query_start_loc[s + 1]) - query_start_loc[s];
    if (scheduled < 0)
      fail("query_start_loc[" + text(s + 1) + "]", "no less than before it", std::to_string(query_start_loc[s + 1]));
    const std::int64_t length = context_lens[s];
    if (length < scheduled || static_cast<std::uint64_t>(length) > max_blocks * block_size) {
      fail("context_lens[" + text(s) + "]",
           std::to_string(scheduled) + " scheduled tokens to " + text(max_blocks * block_size) +
               " slots of its block table",
           std::to_string(length));
    }
  }

  void copy_table(std::size_t s, const std::int32_t* table, std::size_t max_blocks, const KvCacheView& cache) {
    const std::size_t used = (static_cast<std::size_t>(context_lens[s]) + cache.block_size - 1) / cache.block_size;
    std::int32_t* const copy = block_tables.data() + s * max_blocks;
    bool is_valid = true;
    for (std::size_t i = 0; i < used; ++i) {
      copy[i] = table[i];
      is_valid &= static_cast<std::uint32_t>(copy[i]) < cache.num_blocks;  // a negative id is a large one
    }
    if (is_valid) return;
    for (std::size_t i = 0; i < used; ++i) {
      if (static_cast<std::uint32_t>(copy[i]) < cache.num_blocks) continue;
      fail("block_tables[" + text(s) + ", " + text(i) + "]", "0 to " + text(cache.num_blocks - 1),
           std::to_string(copy[i]));
    }
  }
};

}  // namespace foreword::bindings
