#include "foreword/attention.h"

#include <nanobind/stl/optional.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "binding.h"

namespace foreword::bindings {
namespace {

using Cache = nb::ndarray<nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using ConstCache = nb::ndarray<nb::ro, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Ids = Vector<const std::int32_t>;
using OptionalVector = std::optional<Vector<const float>>;

std::string text(std::size_t value) {
  return std::to_string(value);
}

KvDtype dtype_of(const char* argument, nb::dlpack::dtype dtype) {
  if (dtype == nb::dtype<float>()) return KvDtype::kF32;
  if (dtype == nb::dlpack::dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1}) return KvDtype::kF16;
  fail(argument, "float32 or float16", "dtype code " + text(dtype.code) + " of " + text(dtype.bits) + " bits");
}

// k is [N, J, D, B], v is [N, J, B, D]. The kernels that only read take the same view.
template <class Array>
KvCacheView view_of(const Array& k, const Array& v) {
  const KvDtype dtype = dtype_of("k_cache", k.dtype());
  if (dtype_of("v_cache", v.dtype()) != dtype) fail("v_cache", "the dtype of k_cache", "another");
  const std::size_t axes_of_v[] = {0, 1, 3, 2};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    require_size("k_cache", "at least one, so the first axis that is 0 had", 1, k.shape(axis) == 0 ? 0 : 1);
    require_size("v_cache", "as axis " + text(axes_of_v[axis]), k.shape(axis), v.shape(axes_of_v[axis]));
  }
  return {const_cast<void*>(static_cast<const void*>(k.data())),
          const_cast<void*>(static_cast<const void*>(v.data())),
          dtype,
          k.shape(0),
          k.shape(1),
          k.shape(2),
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
std::vector<std::int32_t> checked_ids(const char* argument, const Ids& ids, std::size_t count) {
  std::vector<std::int32_t> copy(ids.data(), ids.data() + ids.shape(0));
  for (std::size_t i = 0; i < copy.size(); ++i) {
    if (copy[i] < 0 || static_cast<std::size_t>(copy[i]) >= count) {
      fail(std::string(argument) + "[" + text(i) + "]", "0 to " + text(count - 1), std::to_string(copy[i]));
    }
  }
  return copy;
}

void bound_rope_store_kv(Context& context, const Rows<float>& qkv, const Ids& positions, const Ids& slot_mapping,
                         const Rows<const float>& cos_sin, const Cache& k_cache, const Cache& v_cache,
                         const OptionalVector& q_norm, const OptionalVector& k_norm, float eps) {
  const KvCacheView cache = view_of(k_cache, v_cache);
  const std::size_t num_tokens = qkv.shape(0), head_dim = cache.head_dim;
  RopeStoreArgs args{};
  args.num_heads = num_query_heads(qkv, cache);
  args.qkv_stride = rows_stride("qkv", qkv);
  if (head_dim % 2 != 0) fail("k_cache", "an even head dimension", text(head_dim));
  if (!std::isfinite(eps) || eps < 0) fail("eps", "a finite number of at least 0", std::to_string(eps));
  require_size("positions", "tokens", num_tokens, positions.shape(0));
  require_size("slot_mapping", "tokens", num_tokens, slot_mapping.shape(0));
  require_size("cos_sin", "columns", head_dim, cos_sin.shape(1));
  if (rows_stride("cos_sin", cos_sin) != head_dim) fail("cos_sin", "contiguous rows", "strided rows");
  if (q_norm) require_size("q_norm", "values", head_dim, q_norm->shape(0));
  if (k_norm) require_size("k_norm", "values", head_dim, k_norm->shape(0));
  if (num_tokens == 0) return;
  const auto positions_copy = checked_ids("positions", positions, cos_sin.shape(0));
  const auto slots_copy = checked_ids("slot_mapping", slot_mapping, cache.num_blocks * cache.block_size);
  args.qkv = qkv.data();
  args.num_tokens = num_tokens;
  args.positions = positions_copy.data();
  args.slot_mapping = slots_copy.data();
  args.cos_sin = cos_sin.data();
  args.num_positions = cos_sin.shape(0);
  args.q_norm = q_norm ? q_norm->data() : nullptr;
  args.k_norm = k_norm ? k_norm->data() : nullptr;
  args.eps = eps;
  nb::gil_scoped_release release;
  rope_store_kv(context, args, cache);
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

void bound_paged_attention(Context& context, const Rows<const float>& qkv, const Rows<const std::int32_t>& block_tables,
                           const Ids& query_start_loc, const Ids& context_lens, const ConstCache& k_cache,
                           const ConstCache& v_cache, float scale, const Rows<float>& out) {
  const KvCacheView cache = view_of(k_cache, v_cache);
  AttentionArgs args{};
  args.num_heads = num_query_heads(qkv, cache);
  require_size("out", "rows", qkv.shape(0), out.shape(0));
  require_size("out", "columns", args.num_heads * cache.head_dim, out.shape(1));
  args.qkv_stride = rows_stride("qkv", qkv);
  args.out_stride = rows_stride("out", out);
  if (!std::isfinite(scale)) fail("scale", "a finite number", std::to_string(scale));
  const CheckedBatch batch(block_tables, query_start_loc, context_lens, qkv.shape(0), cache);
  if (qkv.shape(0) == 0) return;
  args.qkv = qkv.data();
  args.num_sequences = context_lens.shape(0);
  args.block_tables = batch.block_tables.data();
  args.max_blocks = block_tables.shape(1);
  args.query_start_loc = batch.query_start_loc.data();
  args.context_lens = batch.context_lens.data();
  args.scale = scale;
  args.out = out.data();
  nb::gil_scoped_release release;
  paged_attention(context, args, cache);
}

void bound_copy_blocks(Context& context, const Cache& k_cache, const Cache& v_cache, const Ids& sources,
                       const Ids& destinations) {
  const KvCacheView cache = view_of(k_cache, v_cache);
  require_size("destinations", "as sources,", sources.shape(0), destinations.shape(0));
  const auto from = checked_ids("sources", sources, cache.num_blocks);
  const auto to = checked_ids("destinations", destinations, cache.num_blocks);
  if (from.empty()) return;
  nb::gil_scoped_release release;
  copy_blocks(context, cache, from.data(), to.data(), from.size());
}

auto array(const char* name) {
  return nb::arg(name).noconvert();
}

}  // namespace
}  // namespace foreword::bindings

void bind_attention(nb::module_& module) {
  using namespace foreword::bindings;
  module.def("rope_store_kv", &bound_rope_store_kv, nb::arg("context"), array("qkv"), array("positions"),
             array("slot_mapping"), array("cos_sin"), array("k_cache"), array("v_cache"), array("q_norm").none(),
             array("k_norm").none(), nb::arg("eps"),
             "Norms and rotates q in place; writes rotated k, and v, to their slots, rounded once.");
  module.def("paged_attention", &bound_paged_attention, nb::arg("context"), array("qkv"), array("block_tables"),
             array("query_start_loc"), array("context_lens"), array("k_cache"), array("v_cache"), nb::arg("scale"),
             array("out"), "Causal attention of each token over its sequence's blocks.");
  module.def("copy_blocks", &bound_copy_blocks, nb::arg("context"), array("k_cache"), array("v_cache"),
             array("sources"), array("destinations"), "Copies whole blocks of one layer, in order.");
}
