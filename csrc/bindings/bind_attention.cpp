#include "foreword/attention.h"

#include <nanobind/stl/optional.h>

#include <cmath>
#include <optional>

#include "kv_arguments.h"

namespace foreword::bindings {
namespace {

using OptionalVector = std::optional<Vector<const float>>;

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
}
