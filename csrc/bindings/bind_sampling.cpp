#include "foreword/sampling.h"

#include <cmath>
#include <memory>
#include <vector>

#include "binding.h"

namespace foreword::bindings {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
using Array = nb::ndarray<nb::numpy, T>;
using TopLogprobs = nb::typed<nb::tuple, Array<float>, Array<std::int32_t>, Array<std::int32_t>, Array<float>>;

std::string text(std::size_t value) {
  return std::to_string(value);
}

// A new array that owns its memory; filled by the kernel.
template <class T>
struct Filled {
  explicit Filled(std::vector<std::size_t> shape) : shape(std::move(shape)) {
    std::size_t size = 1;
    for (const std::size_t axis : this->shape) size *= axis;
    data = std::make_unique<T[]>(size);
  }

  Array<T> release() {
    nb::capsule owner(data.get(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return {data.release(), shape.size(), shape.data(), owner};
  }

  std::vector<std::size_t> shape;
  std::unique_ptr<T[]> data;
};

void check_logits(const Logits& logits) {
  if (logits.shape(1) == 0 || logits.shape(1) > INT32_MAX) {
    fail("logits", "1 to " + text(INT32_MAX) + " columns", text(logits.shape(1)));
  }
}

Array<std::int32_t> bound_sample(Context& context, const Logits& logits, const Vector<const float>& temperature,
                                 const Vector<const std::int32_t>& top_k, const Vector<const float>& top_p,
                                 const Vector<const float>& min_p, const Vector<const std::uint64_t>& seed,
                                 const Vector<const std::uint32_t>& sequence_index,
                                 const Vector<const std::uint32_t>& position) {
  check_logits(logits);
  const std::size_t num_rows = logits.shape(0);
  require_size("temperature", "rows", num_rows, temperature.shape(0));
  require_size("top_k", "rows", num_rows, top_k.shape(0));
  require_size("top_p", "rows", num_rows, top_p.shape(0));
  require_size("min_p", "rows", num_rows, min_p.shape(0));
  require_size("seed", "rows", num_rows, seed.shape(0));
  require_size("sequence_index", "rows", num_rows, sequence_index.shape(0));
  require_size("position", "rows", num_rows, position.shape(0));
  std::vector<SampleRow> rows(num_rows);
  for (std::size_t r = 0; r < num_rows; ++r) {
    rows[r] = {temperature(r), top_k(r), top_p(r), min_p(r), seed(r), sequence_index(r), position(r)};
    const auto refuse = [&](const char* name, const char* expected, float got) {
      fail(name + ("[" + text(r) + "]"), expected, std::to_string(got));
    };
    if (!std::isfinite(rows[r].temperature) || rows[r].temperature < 0) {
      refuse("temperature", "a finite number of at least 0", rows[r].temperature);
    }
    if (!(rows[r].top_p >= 0 && rows[r].top_p <= 1)) refuse("top_p", "0 to 1", rows[r].top_p);
    if (!(rows[r].min_p >= 0 && rows[r].min_p <= 1)) refuse("min_p", "0 to 1", rows[r].min_p);
  }
  Filled<std::int32_t> tokens({num_rows});
  if (num_rows > 0) {
    nb::gil_scoped_release release;
    sample(context, logits.data(), num_rows, logits.shape(1), rows.data(), tokens.data.get());
  }
  return tokens.release();
}

TopLogprobs bound_top_logprobs(Context& context, const Logits& logits, const Vector<const std::int32_t>& token_ids,
                               std::int64_t k) {
  check_logits(logits);
  const std::size_t num_rows = logits.shape(0), vocab_size = logits.shape(1);
  require_size("token_ids", "rows", num_rows, token_ids.shape(0));
  if (k < 0 || static_cast<std::uint64_t>(k) > vocab_size) fail("k", "0 to " + text(vocab_size), std::to_string(k));
  const std::vector<std::int32_t> tokens(token_ids.data(), token_ids.data() + num_rows);
  for (std::size_t r = 0; r < num_rows; ++r) {
    if (tokens[r] < 0 || static_cast<std::size_t>(tokens[r]) >= vocab_size) {
      fail("token_ids[" + text(r) + "]", "0 to " + text(vocab_size - 1), std::to_string(tokens[r]));
    }
  }
  const std::size_t num_top = static_cast<std::size_t>(k);
  Filled<float> chosen({num_rows}), top({num_rows, num_top});
  Filled<std::int32_t> ranks({num_rows}), ids({num_rows, num_top});
  if (num_rows > 0) {
    nb::gil_scoped_release release;
    top_logprobs(context, logits.data(), num_rows, vocab_size, tokens.data(), num_top, chosen.data.get(),
                 ranks.data.get(), ids.data.get(), top.data.get());
  }
  return TopLogprobs(nb::make_tuple(chosen.release(), ranks.release(), ids.release(), top.release()));
}

auto array(const char* name) {
  return nb::arg(name).noconvert();
}

}  // namespace
}  // namespace foreword::bindings

void bind_sampling(nb::module_& module) {
  using namespace foreword;
  using namespace foreword::bindings;
  module.def("sample", &bound_sample, nb::arg("context"), array("logits"), array("temperature"), array("top_k"),
             array("top_p"), array("min_p"), array("seed"), array("sequence_index"), array("position"),
             "Draws one token a row; int32.");
  module.def("top_logprobs", &bound_top_logprobs, nb::arg("context"), array("logits"), array("token_ids"), nb::arg("k"),
             "Log-probabilities and ranks of the given tokens; ids and log-probabilities of the k best of each row.");
  module.def("uniform_at", &uniform_at, nb::arg("seed"), nb::arg("sequence_index"), nb::arg("position"),
             "The draw in [0, 1) of one position.");
}
