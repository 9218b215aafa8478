// IEEE half precision in integer arithmetic: the same bits as F16C, for builds and machines without it.
#pragma once

#include <bit>
#include <cstdint>

namespace foreword {

inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  const std::uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 0x1f) {  // infinity, or a NaN made quiet
    return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13) | (mantissa != 0 ? 0x400000U : 0U));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

// To nearest, ties to even; too large becomes infinity.
inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  } else if (magnitude >= 0x47800000U) {  // 65536 and above
    half = 0x7c00U;
  } else if (magnitude >= 0x38800000U) {  // normal in half precision; a carry out of the mantissa raises the exponent
    half = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  } else if (magnitude >= 0x33000000U) {  // subnormal: units of 2^-24
    const std::uint32_t shift = 126U - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
    half = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1U << shift) - 1U), tie = 1U << (shift - 1U);
    if (rest > tie || (rest == tie && (half & 1U) != 0)) ++half;
  } else {
    half = 0;
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace foreword
