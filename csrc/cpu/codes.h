// How heads are rounded to codes, the same bits with every instruction set. Included by the kernels of an instruction
// set; everything is in an anonymous namespace, so that copies compiled with other flags are never merged by the
// linker.
#pragma once

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "foreword/attention.h"

namespace foreword {
namespace {

// What the values of a head are rounded to: code * scale.
struct CodeScale {
  float scale, inverse;  // inverse 0: every code is 0
};

template <class T>
constexpr bool kIsCode = std::is_same_v<T, std::int8_t> || std::is_same_v<T, std::int16_t>;

template <class Code>
constexpr float kMostValueCode = std::is_same_v<Code, std::int8_t> ? kMostInt8Code : kMostInt16ValueCode;

// By its length: the squares of the codes sum up to kCodeLength squared, so that no part of a product of two heads
// leaves 32 bits. A float's square is exact in double; the sum goes in eight lanes, which are folded in halves.
inline CodeScale scale_by_length(const float* x, std::size_t dim) {
  double lanes[8] = {};
  const auto add = [&](std::size_t d, std::size_t lane) {
    lanes[lane] += static_cast<double>(x[d]) * static_cast<double>(x[d]);
  };
  const std::size_t whole = dim / 8 * 8;
  for (std::size_t d = 0; d < whole; d += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) add(d + lane, lane);
  }
  for (std::size_t d = whole; d < dim; ++d) add(d, d - whole);
  const double sum = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  if (!(sum <= DBL_MAX)) return {__builtin_nanf(""), 0.0f};
  const double length = __builtin_sqrt(sum), inverse = kCodeLength / length;
  if (!(inverse <= FLT_MAX)) return {0.0f, 0.0f};
  return {static_cast<float>(length / kCodeLength), static_cast<float>(inverse)};
}

// Rounded to nearest even; |x| <= 32767.
inline std::int16_t to_code(float x) {
  const float shifted = x + 0x1.8p23f;  // its low 16 bits are round(x)
  std::int32_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  return static_cast<std::int16_t>(bits);
}

}  // namespace
}  // namespace foreword
