#include "foreword/matrix.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "binding.h"
#include "foreword/packing.h"

namespace foreword::bindings {
namespace {

using OptionalVector = std::optional<Vector<const float>>;
using PartTuple = nb::typed<nb::tuple, nb::str, nb::int_, nb::int_, Vector<const std::uint8_t>,
                            std::optional<Vector<const std::int32_t>>>;

constexpr std::pair<std::string_view, SourceFormat> kFormats[] = {
    {"F32", SourceFormat::kF32},   {"F16", SourceFormat::kF16},   {"BF16", SourceFormat::kBf16},
    {"Q4_0", SourceFormat::kQ4_0}, {"Q4_1", SourceFormat::kQ4_1}, {"Q4_K", SourceFormat::kQ4_K},
    {"Q8_0", SourceFormat::kQ8_0}};

SourceFormat format_of(const std::string& argument, std::string_view name) {
  std::string known;
  for (const auto& [known_name, format] : kFormats) {
    if (known_name == name) return format;
    known.append(known.empty() ? "" : ", ").append(known_name);
  }
  fail(argument, "a type of " + known, "'" + std::string(name) + "'");
}

std::string python_type(nb::handle object) {
  return nb::cast<std::string>(nb::str(object.type().attr("__name__")));
}

template <class T>
T element(const std::string& argument, nb::handle object, const char* expected) {
  T value;
  if (!nb::try_cast<T>(object, value, false)) fail(argument, expected, python_type(object));
  return value;
}

// One source with what it points to: the bytes stay with their array, the order is copied, since Python could change it
// while the GIL is released.
struct HeldSource {
  MatrixSource source;
  Vector<const std::uint8_t> data;
  std::vector<std::int32_t> row_order;
};

std::size_t positive(const std::string& argument, nb::handle object) {
  const auto value = element<std::int64_t>(argument, object, "an int");
  if (value < 1 || value > INT32_MAX) fail(argument, "1 to " + std::to_string(INT32_MAX), std::to_string(value));
  return static_cast<std::size_t>(value);
}

HeldSource read_part(std::size_t index, nb::handle object) {
  const std::string name = "parts[" + std::to_string(index) + "]";
  const auto part = element<nb::tuple>(name, object, "a tuple");
  require_size(name, "a tuple of", 5, part.size());
  const SourceFormat format = format_of(name + " type", element<std::string>(name + " type", part[0], "a str"));
  const std::size_t rows = positive(name + " rows", part[1]), cols = positive(name + " cols", part[2]);
  const std::size_t row_bytes = source_row_bytes(format, cols);
  if (row_bytes == 0) fail(name + " cols", "a whole number of the type's blocks", std::to_string(cols));
  HeldSource held{
      {format, rows, cols, nullptr, nullptr},
      element<Vector<const std::uint8_t>>(name + " data", part[3], "a contiguous uint8 array of one dimension"),
      {}};
  require_size(name + " data", "bytes", rows * row_bytes, held.data.shape(0));
  held.source.data = held.data.data();
  if (!part[4].is_none()) {
    const auto order = element<Vector<const std::int32_t>>(name + " row_order", part[4],
                                                           "None or a contiguous int32 array of one dimension");
    require_size(name + " row_order", "rows", rows, order.shape(0));
    held.row_order.assign(order.data(), order.data() + rows);
    held.source.row_order = held.row_order.data();
  }
  return held;
}

using PartList = nb::typed<nb::list, PartTuple>;

std::vector<HeldSource> read_parts(const PartList& parts) {
  std::vector<HeldSource> held;
  held.reserve(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) held.push_back(read_part(i, parts[i]));
  if (held.empty()) fail("parts", "at least one", "none");
  for (std::size_t i = 0; i < held.size(); ++i) {
    const std::size_t cols = held[i].source.cols;
    require_size("parts[" + std::to_string(i) + "] cols", "those of parts[0],", held[0].source.cols, cols);
  }
  return held;
}

std::vector<MatrixSource> sources_of(const std::vector<HeldSource>& held) {
  std::vector<MatrixSource> sources;
  for (const HeldSource& each : held) sources.push_back(each.source);
  return sources;
}

PackedMatrix pack_matrix(Context& context, const PartList& parts) {
  const std::vector<HeldSource> held = read_parts(parts);
  nb::gil_scoped_release release;
  return PackedMatrix(sources_of(held), context);
}

// Packing with the arrays it reads, which Python could let go of.
class HeldPacking {
 public:
  HeldPacking(Context& context, const nb::typed<nb::list, PartList>& matrices) {
    std::vector<std::vector<MatrixSource>> sources;
    for (nb::handle parts : matrices) {
      held_.push_back(read_parts(element<PartList>("matrices", parts, "a list")));
      sources.push_back(sources_of(held_.back()));
    }
    packing_.emplace(sources, context);
  }

  bool help(std::size_t max_pieces) {
    nb::gil_scoped_release release;
    return packing_->help(max_pieces);
  }

  nb::typed<nb::list, PackedMatrix> finish() {
    std::vector<PackedMatrix> packed;
    {
      nb::gil_scoped_release release;
      packed = packing_->finish();
    }
    nb::list result;
    for (PackedMatrix& matrix : packed) result.append(nb::cast(std::move(matrix)));
    return nb::typed<nb::list, PackedMatrix>(result);
  }

  std::optional<nb::typed<nb::tuple, nb::int_, nb::int_>> not_finite() const {
    const auto place = packing_->not_finite();
    if (!place) return std::nullopt;
    return nb::typed<nb::tuple, nb::int_, nb::int_>(nb::make_tuple(place->matrix, place->part));
  }

 private:
  std::vector<std::vector<HeldSource>> held_;  // of which the inner ones never move again
  std::optional<Packing> packing_;
};

void bound_embed(Context& context, const PackedMatrix& table, const Vector<const std::int32_t>& token_ids,
                 const Rows<float>& out) {
  require_size("out", "rows", token_ids.shape(0), out.shape(0));
  require_size("out", "columns", table.cols(), out.shape(1));
  const std::size_t out_stride = rows_stride("out", out);
  const std::span<const std::int32_t> ids(token_ids.data(), token_ids.shape(0));
  for (std::size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] < 0 || static_cast<std::size_t>(ids[t]) >= table.rows()) {
      fail("token_ids[" + std::to_string(t) + "]", "0 to " + std::to_string(table.rows() - 1), std::to_string(ids[t]));
    }
  }
  nb::gil_scoped_release release;
  embed(context, table, ids, out.data(), out_stride);
}

void check_eps(float eps) {
  if (!std::isfinite(eps) || eps < 0) fail("eps", "a finite number of at least 0", std::to_string(eps));
}

void bound_rms_norm(Context& context, const Rows<const float>& x, const Vector<const float>& weight, float eps,
                    const Rows<float>& out) {
  check_eps(eps);
  require_size("weight", "values", x.shape(1), weight.shape(0));
  require_size("out", "rows", x.shape(0), out.shape(0));
  require_size("out", "columns", x.shape(1), out.shape(1));
  const std::size_t x_stride = rows_stride("x", x), out_stride = rows_stride("out", out);
  if (x.shape(0) == 0 || x.shape(1) == 0) return;
  nb::gil_scoped_release release;
  rms_norm(context, x.data(), x_stride, x.shape(0), x.shape(1), weight.data(), eps, out.data(), out_stride);
}

// The checks and the call that the three products share. `inputs` is how many columns x must have.
void run_linear(Context& context, const char* name, const Rows<const float>& x, std::size_t inputs,
                const RowTransform& transform, const PackedMatrix& matrix, const Rows<float>& out,
                const OptionalVector& bias, bool accumulate) {
  require_size(name, "columns", inputs, x.shape(1));
  require_size("out", "rows", x.shape(0), out.shape(0));
  require_size("out", "columns", matrix.rows(), out.shape(1));
  if (bias) require_size("bias", "values", matrix.rows(), bias->shape(0));
  const std::size_t x_stride = rows_stride(name, x), out_stride = rows_stride("out", out);
  const float* bias_data = bias ? bias->data() : nullptr;
  nb::gil_scoped_release release;
  linear(context, x.data(), x_stride, x.shape(0), transform, matrix, bias_data, accumulate, out.data(), out_stride);
}

void bound_linear(Context& context, const Rows<const float>& x, const PackedMatrix& matrix, const Rows<float>& out,
                  const OptionalVector& bias, bool accumulate) {
  run_linear(context, "x", x, matrix.cols(), {}, matrix, out, bias, accumulate);
}

void bound_norm_linear(Context& context, const Rows<const float>& x, const Vector<const float>& norm_weight, float eps,
                       const PackedMatrix& matrix, const Rows<float>& out, const OptionalVector& bias) {
  check_eps(eps);
  require_size("norm_weight", "values", matrix.cols(), norm_weight.shape(0));
  run_linear(context, "x", x, matrix.cols(), {RowTransform::kRmsNorm, norm_weight.data(), eps}, matrix, out, bias,
             false);
}

void bound_swiglu_linear(Context& context, const Rows<const float>& gate_up, const PackedMatrix& matrix,
                         const Rows<float>& out, const OptionalVector& bias, bool accumulate) {
  run_linear(context, "gate_up", gate_up, 2 * matrix.cols(), {RowTransform::kSwiGlu, nullptr, 0}, matrix, out, bias,
             accumulate);
}

auto array(const char* name) {
  return nb::arg(name).noconvert();
}

}  // namespace
}  // namespace foreword::bindings

void bind_matrix(nb::module_& module) {
  using namespace foreword;
  using namespace foreword::bindings;
  nb::class_<PackedMatrix>(module, "PackedMatrix", "A weight matrix in the kernels' layout.")
      .def_prop_ro("rows", &PackedMatrix::rows)
      .def_prop_ro("cols", &PackedMatrix::cols)
      .def_prop_ro("num_bytes", &PackedMatrix::num_bytes);
  module.def("pack_matrix", &pack_matrix, nb::arg("context"), nb::arg("parts"),
             "Packs parts (type, rows, cols, data, row_order or None) behind one another.");
  nb::class_<HeldPacking>(module, "Packing",
                          "Many matrices, packed on a thread of its own beside what its caller does.")
      .def(nb::init<Context&, const nb::typed<nb::list, PartList>&>(), nb::arg("context"), nb::arg("matrices"),
           nb::keep_alive<1, 2>())
      .def("help", &HeldPacking::help, nb::arg("max_pieces"),
           "Packs so many pieces on each of the context's threads; true when none is left to begin.")
      .def("finish", &HeldPacking::finish, "The matrices, once.")
      .def_prop_ro("not_finite", &HeldPacking::not_finite,
                   "Matrix and part of the first value that is not finite, of all that is packed.");
  module.def("embed", &bound_embed, nb::arg("context"), nb::arg("table"), array("token_ids"), array("out"),
             "out[t] = table[token_ids[t]].");
  module.def("rms_norm", &bound_rms_norm, nb::arg("context"), array("x"), array("weight"), nb::arg("eps"), array("out"),
             "out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight; x and out may be one array.");
  module.def("linear", &bound_linear, nb::arg("context"), array("x"), nb::arg("matrix"), array("out"),
             array("bias").none(), nb::arg("accumulate"), "out = x @ matrix.T + bias, added to out where accumulate.");
  module.def("norm_linear", &bound_norm_linear, nb::arg("context"), array("x"), array("norm_weight"), nb::arg("eps"),
             nb::arg("matrix"), array("out"), array("bias").none(), "linear of rms_norm(x).");
  module.def("swiglu_linear", &bound_swiglu_linear, nb::arg("context"), array("gate_up"), nb::arg("matrix"),
             array("out"), array("bias").none(), nb::arg("accumulate"), "linear of silu(gate) * up.");
}
