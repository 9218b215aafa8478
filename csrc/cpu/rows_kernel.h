// Norm, SwiGLU and rounding of activation rows, written once for the instruction sets with eight lanes and a fused
// multiply-add; `Simd` is one of simd_rows_*.h. Tails are padded and go through the same instructions, so a value's
// bits do not depend on where in the row it lies. Included from the one .cpp of an instruction set.
#pragma once

#include "exp_constants.h"
#include "matmul_kernels.h"

namespace foreword {
namespace {

template <class Simd>
inline typename Simd::Float load_tail(const float* x, std::size_t n) {
  float padded[Simd::kLanes] = {};
  for (std::size_t k = 0; k < n; ++k) padded[k] = x[k];
  return Simd::load(padded);
}

template <class Simd>
inline void store_tail(float* out, typename Simd::Float value, std::size_t n) {
  float padded[Simd::kLanes];
  Simd::store(padded, value);
  for (std::size_t k = 0; k < n; ++k) out[k] = padded[k];
}

// e^x for x within [kExpLowest, kExpHighest], otherwise of the nearer bound.
template <class Simd>
inline typename Simd::Float exp_clamped(typename Simd::Float x) {
  x = Simd::larger(Simd::set(kExpLowest), x);
  x = Simd::smaller(Simd::set(kExpHighest), x);
  const auto shift = Simd::set(kRoundShift);
  const auto shifted = Simd::multiply_add(x, Simd::set(kLog2E), shift);
  const auto n = shifted - shift;
  const auto coarse = Simd::multiply_add(n, Simd::set(-kLn2High), x);
  const auto r = Simd::multiply_add(n, Simd::set(-kLn2Low), coarse);
  auto p = Simd::set(kExpPolynomial[0]);
  for (std::size_t i = 1; i < sizeof(kExpPolynomial) / sizeof(float); ++i) {
    p = Simd::multiply_add(p, r, Simd::set(kExpPolynomial[i]));
  }
  return Simd::add_exponent(p, shifted);
}

template <class Simd>
inline typename Simd::Float swiglu_lanes(typename Simd::Float gate, typename Simd::Float up) {
  const auto divisor = Simd::set(1.0f) + exp_clamped<Simd>(Simd::negate(gate));
  return gate / divisor * up;
}

struct GroupScale {
  float scale, inverse;  // inverse 0: every code is 0
};

inline GroupScale group_scale(std::uint32_t largest_bits) {
  if (largest_bits >= 0x7f800000U) return {__builtin_nanf(""), 0.0f};
  float largest;
  __builtin_memcpy(&largest, &largest_bits, sizeof largest);
  const float inverse = 127.0f / largest;
  if (!(inverse <= __FLT_MAX__)) return {0.0f, 0.0f};
  return {largest / 127.0f, inverse};
}

template <class Simd>
double row_sum_of_squares(const float* x, std::size_t n) {
  auto low = Simd::set_double(0.0), high = Simd::set_double(0.0);  // lanes 0..3 and 4..7
  const auto add_eight = [&](const float* eight) {
    const auto a = Simd::widen(eight), b = Simd::widen(eight + Simd::kLanes / 2);
    low = Simd::multiply_add(a, a, low);
    high = Simd::multiply_add(b, b, high);
  };
  std::size_t k = 0;
  for (; k + Simd::kLanes <= n; k += Simd::kLanes) add_eight(x + k);
  if (k < n) {
    float padded[Simd::kLanes];
    Simd::store(padded, load_tail<Simd>(x + k, n - k));
    add_eight(padded);
  }
  return Simd::sum(low + high);
}

template <class Simd>
void row_scale(const float* x, float factor, const float* weight, std::size_t n, float* out) {
  const auto f = Simd::set(factor);
  std::size_t k = 0;
  for (; k + Simd::kLanes <= n; k += Simd::kLanes) {
    Simd::store(out + k, Simd::load(x + k) * f * Simd::load(weight + k));
  }
  for (; k < n; ++k) out[k] = x[k] * factor * weight[k];
}

template <class Simd>
void row_swiglu(const float* gate, const float* up, std::size_t n, float* out) {
  std::size_t k = 0;
  for (; k + Simd::kLanes <= n; k += Simd::kLanes) {
    Simd::store(out + k, swiglu_lanes<Simd>(Simd::load(gate + k), Simd::load(up + k)));
  }
  if (k == n) return;
  const auto tail = swiglu_lanes<Simd>(load_tail<Simd>(gate + k, n - k), load_tail<Simd>(up + k, n - k));
  store_tail<Simd>(out + k, tail, n - k);
}

template <class Simd>
void row_quantise(const float* x, std::size_t num_groups, std::uint8_t* record, std::size_t m, std::size_t row) {
  static_assert(kGroup == 4 * Simd::kLanes);
  for (std::size_t g = 0; g < num_groups; ++g, x += kGroup, record += m * kInt8RecordBytes) {
    typename Simd::Float v[4];
    for (std::size_t i = 0; i < 4; ++i) v[i] = Simd::load(x + i * Simd::kLanes);
    const GroupScale group = group_scale(Simd::largest_magnitude(v));
    for (std::size_t i = 0; i < 4; ++i) {
      v[i] = group.inverse != 0.0f ? v[i] * Simd::set(group.inverse) : Simd::set(0.0f);
    }
    const float sum = static_cast<float>(Simd::store_rounded(v, record + row * kGroup));
    const float scaled_sum = group.scale * sum;
    __builtin_memcpy(record + m * kGroup + row * 4, &group.scale, sizeof group.scale);
    __builtin_memcpy(record + m * (kGroup + 4) + row * 4, &scaled_sum, sizeof scaled_sum);
  }
}

}  // namespace
}  // namespace foreword
