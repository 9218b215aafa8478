#include "foreword/decoder.h"

#include <nanobind/stl/optional.h>

#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kv_arguments.h"

namespace foreword::bindings {
namespace {

using OptionalVector = std::optional<Vector<const float>>;
using OptionalIds = std::optional<Ids>;
using Buffer = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OptionalBuffer = std::optional<Buffer>;
// attention_norm, qkv, qkv_bias, q_norm, k_norm, output, output_bias, mlp_norm, gate_up, gate_up_bias, down, down_bias
using Norm = Vector<const float>;
using LayerTuple =
    nb::typed<nb::tuple, Norm, PackedMatrix, OptionalVector, OptionalVector, OptionalVector, PackedMatrix,
              OptionalVector, Norm, PackedMatrix, OptionalVector, PackedMatrix, OptionalVector>;
constexpr std::size_t kLayerParts = 12;

struct HeadSizes {
  std::size_t num_heads, num_kv_heads, head_dim;
  std::size_t attention() const { return num_heads * head_dim; }
  std::size_t qkv() const { return attention() + 2 * num_kv_heads * head_dim; }
};

// Reads one layer's tuple and keeps what it points to.
class LayerReader {
 public:
  LayerReader(std::size_t index, const nb::tuple& parts, std::vector<nb::object>& held)
      : name_("layers[" + text(index) + "]"), parts_(parts), held_(held) {
    require_size(name_, "a tuple of", kLayerParts, parts.size());
  }

  const PackedMatrix* matrix(std::size_t part, const char* what) {
    const PackedMatrix* found = nullptr;
    if (!nb::try_cast(parts_[part], found, false) || found == nullptr) fail(name_ + what, "a packed matrix", "another");
    return found;
  }

  const PackedMatrix* matrix(std::size_t part, const char* what, std::size_t rows, std::size_t cols) {
    const PackedMatrix* found = matrix(part, what);
    require_size(name_ + what, "outputs", rows, found->rows());
    require_size(name_ + what, "inputs", cols, found->cols());
    held_.push_back(nb::borrow(parts_[part]));
    return found;
  }

  const float* vector(std::size_t part, const char* what, std::size_t size) {
    Norm found;
    if (!nb::try_cast(parts_[part], found, false)) fail(name_ + what, "a contiguous float32 array", "another");
    require_size(name_ + what, "values", size, found.shape(0));
    held_.push_back(nb::borrow(parts_[part]));
    return found.data();
  }

  const float* optional_vector(std::size_t part, const char* what, std::size_t size) {
    return parts_[part].is_none() ? nullptr : vector(part, what, size);
  }

 private:
  std::string name_;
  const nb::tuple& parts_;
  std::vector<nb::object>& held_;
};

// The K/V and the buffers that steps use, and references to them.
struct Bound {
  std::vector<KvCacheView> caches;
  DecoderBuffers buffers{};
  std::size_t max_tokens = 0;
  std::vector<Cache> cache_arrays;
  std::vector<Buffer> buffer_arrays;
};

// A model, what it is bound to, and references to all of it.
class Decoder {
 public:
  Decoder(const PackedMatrix& embedding, const nb::typed<nb::list, LayerTuple>& layers, const Norm& final_norm,
          const PackedMatrix& head, HeadSizes sizes, float eps, float scale)
      : sizes_(sizes) {
    if (layers.size() == 0) fail("layers", "at least one", "none");
    if (!std::isfinite(eps) || eps < 0) fail("eps", "a finite number of at least 0", std::to_string(eps));
    if (!std::isfinite(scale)) fail("scale", "a finite number", std::to_string(scale));
    require_size("final_norm", "values", embedding.cols(), final_norm.shape(0));
    require_size("head", "inputs", embedding.cols(), head.cols());
    held_ = {nb::find(embedding), nb::find(final_norm), nb::find(head)};
    model_ = {&embedding, {},   final_norm.data(), &head, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim,
              eps,        scale};
    for (std::size_t i = 0; i < layers.size(); ++i) {
      nb::tuple parts;
      if (!nb::try_cast(layers[i], parts, false)) fail("layers[" + text(i) + "]", "a tuple", "another");
      model_.layers.push_back(read_layer(i, parts));
    }
  }

  // K/V of every layer and the buffers, used by every step until the next call.
  void bind(const nb::typed<nb::list, Cache>& k_caches, const nb::typed<nb::list, Cache>& v_caches,
            const Buffer& hidden, const Buffer& last_hidden, const Buffer& qkv, const Buffer& attention,
            const Buffer& last_attention, const Buffer& gate_up) {
    const std::size_t num_layers = model_.layers.size(), max_tokens = hidden.shape(0);
    require_size("k_caches", "layers", num_layers, k_caches.size());
    require_size("v_caches", "layers", num_layers, v_caches.size());
    auto bound = std::make_shared<Bound>();
    std::vector<KvCacheView>& caches = bound->caches;
    for (std::size_t i = 0; i < num_layers; ++i) {
      Cache k, v;
      if (!nb::try_cast(k_caches[i], k, false)) fail("k_caches[" + text(i) + "]", "a contiguous array", "another");
      if (!nb::try_cast(v_caches[i], v, false)) fail("v_caches[" + text(i) + "]", "a contiguous array", "another");
      caches.push_back(view_of(k, v));
      check_cache(i, caches.front(), caches.back());
      bound->cache_arrays.push_back(std::move(k));
      bound->cache_arrays.push_back(std::move(v));
    }
    const std::size_t columns[] = {model_.embedding->cols(), model_.embedding->cols(), sizes_.qkv(),
                                   sizes_.attention(),       sizes_.attention(),       gate_up_size_};
    const char* const names[] = {"hidden", "last_hidden", "qkv", "attention", "last_attention", "gate_up"};
    const Buffer* const buffers[] = {&hidden, &last_hidden, &qkv, &attention, &last_attention, &gate_up};
    for (std::size_t i = 0; i < std::size(buffers); ++i) {
      require_size(names[i], "rows", max_tokens, buffers[i]->shape(0));
      require_size(names[i], "columns", columns[i], buffers[i]->shape(1));
    }
    bound->buffer_arrays = {hidden, last_hidden, qkv, attention, last_attention, gate_up};
    bound->buffers = {hidden.data(),    last_hidden.data(),    qkv.data(),
                      attention.data(), last_attention.data(), gate_up.data()};
    bound->max_tokens = max_tokens;
    bound_ = std::move(bound);
  }

  void forward(Context& context, const Ids& token_ids, const Ids& positions, const Ids& slot_mapping,
               const Rows<const std::int32_t>& block_tables, const Ids& query_start_loc, const Ids& context_lens,
               const Rows<const float>& cos_sin, const OptionalIds& rows, const OptionalBuffer& logits,
               const std::optional<Vector<std::int32_t>>& best, std::int64_t num_words) const {
    const std::shared_ptr<const Bound> bound = bound_;  // kept, should another thread bind anew meanwhile
    if (bound == nullptr) fail("bind", "a call before the first step", "none");
    const std::size_t num_tokens = token_ids.shape(0), max_tokens = bound->max_tokens;
    if (num_tokens > max_tokens) fail("token_ids", "at most " + text(max_tokens) + " tokens", text(num_tokens));
    require_size("positions", "tokens", num_tokens, positions.shape(0));
    require_size("slot_mapping", "tokens", num_tokens, slot_mapping.shape(0));
    require_size("cos_sin", "columns", sizes_.head_dim, cos_sin.shape(1));
    if (rows_stride("cos_sin", cos_sin) != sizes_.head_dim) fail("cos_sin", "contiguous rows", "strided rows");
    const KvCacheView& cache = bound->caches.front();
    const CheckedBatch batch(block_tables, query_start_loc, context_lens, num_tokens, cache);
    if (num_tokens == 0) return;
    const auto tokens = checked_ids("token_ids", token_ids, model_.embedding->rows());
    const auto places = checked_ids("positions", positions, cos_sin.shape(0));
    const auto slots = checked_ids("slot_mapping", slot_mapping, cache.num_blocks * cache.block_size);
    std::vector<std::int32_t> picked;
    if (rows) {
      if (rows->shape(0) > max_tokens) fail("rows", "at most " + text(max_tokens), text(rows->shape(0)));
      picked = checked_ids("rows", *rows, num_tokens);
      picked.reserve(1);  // an empty one still picks
    }
    if (logits) {
      require_size("logits", "rows", rows ? picked.size() : num_tokens, logits->shape(0));
      require_size("logits", "columns", model_.head->rows(), logits->shape(1));
    }
    if (best) {
      if (!logits) fail("best", "logits beside it", "none");
      require_size("best", "rows", logits->shape(0), best->shape(0));
      if (num_words < 1 || static_cast<std::uint64_t>(num_words) > model_.head->rows()) {
        fail("num_words", "1 to " + text(model_.head->rows()), std::to_string(num_words));
      }
    }
    DecoderStep step{};
    step.num_tokens = num_tokens;
    step.token_ids = tokens.data();
    step.positions = places.data();
    step.slot_mapping = slots.data();
    step.cos_sin = cos_sin.data();
    step.num_positions = cos_sin.shape(0);
    step.num_sequences = context_lens.shape(0);
    step.max_blocks = block_tables.shape(1);
    step.block_tables = batch.block_tables.data();
    step.query_start_loc = batch.query_start_loc.data();
    step.context_lens = batch.context_lens.data();
    step.rows = rows ? picked.data() : nullptr;
    step.num_rows = picked.size();
    step.logits = logits ? logits->data() : nullptr;
    step.best = best ? best->data() : nullptr;
    step.num_words = best ? static_cast<std::size_t>(num_words) : 0;
    nb::gil_scoped_release release;
    run_decoder(context, model_, bound->caches.data(), bound->buffers, step);
  }

 private:
  DecoderLayer read_layer(std::size_t index, const nb::tuple& parts) {
    LayerReader reader(index, parts, held_);
    const std::size_t size = model_.embedding->cols();
    DecoderLayer layer{};
    layer.attention_norm = reader.vector(0, " attention_norm", size);
    layer.qkv = reader.matrix(1, " qkv", sizes_.qkv(), size);
    layer.qkv_bias = reader.optional_vector(2, " qkv_bias", sizes_.qkv());
    layer.q_norm = reader.optional_vector(3, " q_norm", sizes_.head_dim);
    layer.k_norm = reader.optional_vector(4, " k_norm", sizes_.head_dim);
    layer.output = reader.matrix(5, " output", size, sizes_.attention());
    layer.output_bias = reader.optional_vector(6, " output_bias", size);
    layer.mlp_norm = reader.vector(7, " mlp_norm", size);
    if (gate_up_size_ == 0) gate_up_size_ = reader.matrix(8, " gate_up")->rows() / 2 * 2;
    layer.gate_up = reader.matrix(8, " gate_up", gate_up_size_, size);
    layer.gate_up_bias = reader.optional_vector(9, " gate_up_bias", gate_up_size_);
    layer.down = reader.matrix(10, " down", size, gate_up_size_ / 2);
    layer.down_bias = reader.optional_vector(11, " down_bias", size);
    return layer;
  }

  void check_cache(std::size_t index, const KvCacheView& first, const KvCacheView& cache) const {
    const std::string name = "k_caches[" + text(index) + "]";
    require_size(name, "KV heads", sizes_.num_kv_heads, cache.num_kv_heads);
    require_size(name, "head dimension", sizes_.head_dim, cache.head_dim);
    require_size(name, "blocks", first.num_blocks, cache.num_blocks);
    require_size(name, "block size", first.block_size, cache.block_size);
    if (cache.dtype != first.dtype) fail(name, "the dtype of the first layer", "another");
  }

  HeadSizes sizes_;
  std::size_t gate_up_size_ = 0;
  DecoderModel model_{};
  std::vector<nb::object> held_;  // weights
  std::shared_ptr<const Bound> bound_;
};

void make_decoder(Decoder* self, const PackedMatrix& embedding, const nb::typed<nb::list, LayerTuple>& layers,
                  const Norm& final_norm, const PackedMatrix& head, std::int64_t num_heads, std::int64_t num_kv_heads,
                  std::int64_t head_dim, float eps, float scale) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value < 1 || value > INT32_MAX) fail(name, "1 to " + std::to_string(INT32_MAX), std::to_string(value));
    return static_cast<std::size_t>(value);
  };
  const HeadSizes sizes{positive("num_heads", num_heads), positive("num_kv_heads", num_kv_heads),
                        positive("head_dim", head_dim)};
  if (sizes.head_dim % 2 != 0) fail("head_dim", "an even number", text(sizes.head_dim));
  if (sizes.num_heads % sizes.num_kv_heads != 0) {
    fail("num_heads", "a multiple of num_kv_heads " + text(sizes.num_kv_heads), text(sizes.num_heads));
  }
  new (self) Decoder(embedding, layers, final_norm, head, sizes, eps, scale);
}

auto array(const char* name) {
  return nb::arg(name).noconvert();
}

}  // namespace
}  // namespace foreword::bindings

void bind_decoder(nb::module_& module) {
  using namespace foreword::bindings;
  nb::class_<Decoder>(module, "Decoder", "The layers of a llama-like model, run as one call.")
      .def("__init__", &make_decoder, nb::arg("embedding"), nb::arg("layers"), array("final_norm"), nb::arg("head"),
           nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("eps"), nb::arg("scale"))
      .def("bind", &Decoder::bind, nb::arg("k_caches"), nb::arg("v_caches"), array("hidden"), array("last_hidden"),
           array("qkv"), array("attention"), array("last_attention"), array("gate_up"),
           "Keys and values of every layer, and the buffers, of the steps to come.")
      .def("forward", &Decoder::forward, nb::arg("context"), array("token_ids"), array("positions"),
           array("slot_mapping"), array("block_tables"), array("query_start_loc"), array("context_lens"),
           array("cos_sin"), array("rows").none(), array("logits").none(), array("best").none(), nb::arg("num_words"),
           "One step: hidden states to `hidden`, or of `rows` alone to `last_hidden`; their logits, and the best of "
           "each row's first `num_words`.");
}
