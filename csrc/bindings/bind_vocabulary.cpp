#include "foreword/vocabulary.h"

#include <nanobind/stl/optional.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "binding.h"

namespace foreword::bindings {
namespace {

using Bytes = Vector<const std::uint8_t>;
template <class T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
using Cut = nb::typed<nb::tuple, Array<std::uint64_t>, nb::bytes>;

template <class T>
Array<T> as_array(std::vector<T>&& values) {
  auto held = std::make_unique<std::vector<T>>(std::move(values));
  std::vector<T>& kept = *held;
  nb::capsule owner(held.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  held.release();
  const std::size_t shape[] = {kept.size()};
  return {kept.data(), 1, shape, owner};
}

std::string_view view(const nb::bytes& bytes) {
  return {bytes.c_str(), bytes.size()};
}

Array<std::int64_t> bound_string_starts(const Bytes& data, std::int64_t position, std::int64_t count) {
  const std::size_t size = data.shape(0);
  if (position < 0 || static_cast<std::size_t>(position) > size) {
    fail("position", "0 to " + std::to_string(size), std::to_string(position));
  }
  if (count < 0) fail("count", "at least 0", std::to_string(count));
  const std::span<const std::uint8_t> bytes(data.data(), size);
  return as_array(string_starts(bytes.subspan(static_cast<std::size_t>(position)), static_cast<std::size_t>(count)));
}

std::optional<Cut> bound_cut_merges(const nb::bytes& tokens, const nb::bytes& is_plain, const nb::bytes& lines,
                                    std::uint64_t secret) {
  std::optional<CutMerges> cut;
  {
    nb::gil_scoped_release release;
    const auto* flags = static_cast<const std::uint8_t*>(static_cast<const void*>(is_plain.c_str()));
    cut = cut_merges(view(tokens), {flags, is_plain.size()}, view(lines), secret);
  }
  if (!cut) return std::nullopt;
  const nb::bytes halves(cut->halves.data(), cut->halves.size());
  return Cut(nb::make_tuple(as_array(std::move(cut->lengths)), halves));
}

}  // namespace
}  // namespace foreword::bindings

void bind_vocabulary(nb::module_& module) {
  using namespace foreword::bindings;
  module.def("string_starts", &bound_string_starts, nb::arg("data").noconvert(), nb::arg("position"), nb::arg("count"),
             "Where strings with 8 bytes of length begin, from the position, and where the last ends.");
  module.def("cut_merges", &bound_cut_merges, nb::arg("tokens"), nb::arg("is_plain"), nb::arg("lines"),
             nb::arg("secret"), "Characters and bytes of all merges' halves, if all that they are made of is plain.");
}
