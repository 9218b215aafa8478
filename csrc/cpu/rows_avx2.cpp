// Norm, SwiGLU and rounding of activation rows, 8 floats at a time. Tails are padded and go through the same
// instructions, so a value's bits do not depend on where in the row it lies.
#include <immintrin.h>

#include "exp_constants.h"
#include "matmul_avx2.h"

namespace foreword::avx2 {
namespace {

constexpr std::size_t kLanes = 8;

__m256 load_tail(const float* x, std::size_t n) {
  alignas(32) float padded[kLanes] = {};
  for (std::size_t k = 0; k < n; ++k) padded[k] = x[k];
  return _mm256_load_ps(padded);
}

void store_tail(float* out, __m256 value, std::size_t n) {
  alignas(32) float padded[kLanes];
  _mm256_store_ps(padded, value);
  for (std::size_t k = 0; k < n; ++k) out[k] = padded[k];
}

// e^x for x within [kExpLowest, kExpHighest], otherwise of the nearer bound.
__m256 exp_clamped(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(kExpLowest), x);
  x = _mm256_min_ps(_mm256_set1_ps(kExpHighest), x);
  const __m256 shift = _mm256_set1_ps(kRoundShift);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(kLog2E), shift);
  const __m256 n = _mm256_sub_ps(shifted, shift);
  const __m256 coarse = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), x);
  const __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), coarse);
  __m256 p = _mm256_set1_ps(kExpPolynomial[0]);
  for (std::size_t i = 1; i < sizeof(kExpPolynomial) / sizeof(float); ++i) {
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpPolynomial[i]));
  }
  const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
}

__m256 swiglu_lanes(__m256 gate, __m256 up) {
  const __m256 negated = _mm256_xor_ps(gate, _mm256_set1_ps(-0.0f));
  const __m256 divisor = _mm256_add_ps(_mm256_set1_ps(1.0f), exp_clamped(negated));
  return _mm256_mul_ps(_mm256_div_ps(gate, divisor), up);
}

std::int32_t sum_lanes(__m256i x) {
  __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
  y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1));
  return _mm_cvtsi128_si32(y);
}

std::uint32_t largest_lane(__m256i x) {  // all lanes non-negative
  __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4e));
  y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0xb1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(y));
}

void store_float(std::uint8_t* p, float value) {
  _mm_storeu_si32(p, _mm_castps_si128(_mm_set_ss(value)));
}

struct GroupScale {
  float scale, inverse;  // inverse 0: every code is 0
};

GroupScale group_scale(std::uint32_t largest_bits) {
  if (largest_bits >= 0x7f800000U) return {__builtin_nanf(""), 0.0f};
  const float largest = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(largest_bits))));
  const float inverse = 127.0f / largest;
  if (!(inverse <= __FLT_MAX__)) return {0.0f, 0.0f};
  return {largest / 127.0f, inverse};
}

}  // namespace

double sum_of_squares(const float* x, std::size_t n) {
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();  // lanes 0..3 and 4..7
  for (std::size_t k = 0; k < n; k += kLanes) {
    const __m256 v = n - k >= kLanes ? _mm256_loadu_ps(x + k) : load_tail(x + k, n - k);
    const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(v)), b = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    low = _mm256_fmadd_pd(a, a, low);
    high = _mm256_fmadd_pd(b, b, high);
  }
  const __m256d four = _mm256_add_pd(low, high);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

void scale_row(const float* x, float factor, const float* weight, std::size_t n, float* out) {
  const __m256 f = _mm256_set1_ps(factor);
  std::size_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    _mm256_storeu_ps(out + k, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + k), f), _mm256_loadu_ps(weight + k)));
  }
  for (; k < n; ++k) out[k] = x[k] * factor * weight[k];
}

void swiglu(const float* gate, const float* up, std::size_t n, float* out) {
  std::size_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    _mm256_storeu_ps(out + k, swiglu_lanes(_mm256_loadu_ps(gate + k), _mm256_loadu_ps(up + k)));
  }
  if (k < n) store_tail(out + k, swiglu_lanes(load_tail(gate + k, n - k), load_tail(up + k, n - k)), n - k);
}

void quantise(const float* x, std::size_t num_groups, std::uint8_t* record, std::size_t m, std::size_t row) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (std::size_t g = 0; g < num_groups; ++g, x += kGroup, record += m * kInt8RecordBytes) {
    __m256 v[4];
    __m256i largest = _mm256_setzero_si256();  // as integers, so that a NaN is larger than everything
    for (std::size_t i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + i * kLanes);
      largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    const GroupScale group = group_scale(largest_lane(largest));
    __m256i q[4];
    for (std::size_t i = 0; i < 4; ++i) {
      q[i] = group.inverse != 0.0f ? _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(group.inverse)))
                                   : _mm256_setzero_si256();
    }
    const float sum =
        static_cast<float>(sum_lanes(_mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]))));
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(record + row * kGroup),
                        _mm256_permutevar8x32_epi32(packed, in_order));
    store_float(record + m * kGroup + row * 4, group.scale);
    store_float(record + m * (kGroup + 4) + row * 4, group.scale * sum);
  }
}

}  // namespace foreword::avx2
