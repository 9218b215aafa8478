// Norm, SwiGLU and rounding of activation rows in plain C++: the same bits as rows_kernel.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "exp_constants.h"
#include "matmul_scalar.h"

namespace foreword::scalar {
namespace {

// e^x for x within [kExpLowest, kExpHighest], otherwise of the nearer bound. No float is converted to an integer, so
// that NaN is harmless.
float exp_clamped(float x) {
  x = x < kExpLowest ? kExpLowest : x;
  x = x > kExpHighest ? kExpHighest : x;
  const float shifted = std::fma(x, kLog2E, kRoundShift);
  const float n = shifted - kRoundShift;
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, x));
  float p = kExpPolynomial[0];
  for (std::size_t i = 1; i < std::size(kExpPolynomial); ++i) p = std::fma(p, r, kExpPolynomial[i]);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + (std::bit_cast<std::uint32_t>(shifted) << 23));
}

}  // namespace

double sum_of_squares(const float* x, std::size_t n) {
  double lanes[8] = {};
  for (std::size_t k = 0; k < n; ++k) lanes[k % 8] += static_cast<double>(x[k]) * static_cast<double>(x[k]);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

void scale_row(const float* x, float factor, const float* weight, std::size_t n, float* out) {
  for (std::size_t k = 0; k < n; ++k) out[k] = x[k] * factor * weight[k];
}

void swiglu(const float* gate, const float* up, std::size_t n, float* out) {
  for (std::size_t k = 0; k < n; ++k) out[k] = gate[k] / (1.0f + exp_clamped(-gate[k])) * up[k];
}

void quantise(const float* x, std::size_t num_groups, std::uint8_t* record, std::size_t m, std::size_t row) {
  for (std::size_t g = 0; g < num_groups; ++g, x += kGroup, record += m * kInt8RecordBytes) {
    std::uint32_t largest_bits = 0;  // as integers, so that a NaN is larger than everything
    for (std::size_t k = 0; k < kGroup; ++k) {
      largest_bits = std::max(largest_bits, std::bit_cast<std::uint32_t>(x[k]) & 0x7fffffffU);
    }
    const float largest = std::bit_cast<float>(largest_bits);
    const float inverse = 127.0f / largest;
    const bool finite = largest_bits < 0x7f800000U,
               usable = finite && std::bit_cast<std::uint32_t>(inverse) < 0x7f800000U;
    std::int8_t codes[kGroup] = {};
    std::int32_t sum = 0;
    if (usable) {
      for (std::size_t k = 0; k < kGroup; ++k) {
        codes[k] = static_cast<std::int8_t>(std::lrint(x[k] * inverse));
        sum += codes[k];
      }
    }
    const float scale = usable ? largest / 127.0f : finite ? 0.0f : std::bit_cast<float>(0x7fc00000U);
    const float scaled_sum = scale * static_cast<float>(sum);
    std::memcpy(record + row * kGroup, codes, kGroup);
    std::memcpy(record + m * kGroup + row * 4, &scale, 4);
    std::memcpy(record + m * (kGroup + 4) + row * 4, &scaled_sum, 4);
  }
}

}  // namespace foreword::scalar
