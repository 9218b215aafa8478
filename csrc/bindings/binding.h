// What every bind_*.cpp shares: array types, checks of arguments, the parts of the module.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "foreword/context.h"

namespace nb = nanobind;

void bind_context(nb::module_& module);
void bind_matrix(nb::module_& module);
void bind_attention(nb::module_& module);
void bind_decoder(nb::module_& module);
void bind_sampling(nb::module_& module);
void bind_vocabulary(nb::module_& module);

namespace foreword::bindings {

// Bound with .noconvert(): a wrong dtype, rank, device or a read-only output is a TypeError, never a silent copy.
template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Rows = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;  // check with rows_stride: the last axis must be contiguous

[[noreturn]] inline void fail(std::string_view argument, std::string_view expected, std::string_view got) {
  std::string text(argument);
  text.append(": expected ").append(expected).append(", got ").append(got);
  throw nb::value_error(text.c_str());
}

inline void require_size(std::string_view argument, std::string_view what, std::size_t expected, std::size_t got) {
  if (expected == got) return;
  fail(argument, std::string(what) + " " + std::to_string(expected), std::to_string(got));
}

// Elements from one row to the next of an array whose rows are contiguous and do not overlap.
template <class T>
std::size_t rows_stride(std::string_view argument, const Rows<T>& array) {
  const std::size_t rows = array.shape(0), cols = array.shape(1);
  if (rows == 0 || cols == 0) return cols;
  if (cols > 1 && array.stride(1) != 1)
    fail(argument, "a contiguous last axis", "stride " + std::to_string(array.stride(1)));
  if (rows == 1) return cols;
  if (array.stride(0) < static_cast<std::int64_t>(cols)) {
    fail(argument, "rows that do not overlap", "row stride " + std::to_string(array.stride(0)));
  }
  return static_cast<std::size_t>(array.stride(0));
}

}  // namespace foreword::bindings
