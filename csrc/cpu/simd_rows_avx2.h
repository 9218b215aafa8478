// What whole rows need beyond simd_avx2.h: rounding to integers, exponents, doubles. Include only from *_avx2.cpp.
#pragma once

#include "simd_avx2.h"

namespace foreword {
namespace {

struct Avx2Rows : Avx2 {
  static Float smaller(Float a, Float b) { return _mm256_min_ps(a, b); }  // b where either is NaN
  static Float negate(Float x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }
  static Float add_exponent(Float x, Float n) {  // x * 2^(low bits of n)
    const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), power));
  }
  static std::uint32_t above(Float x, Float bound) {  // bit i is set where lane i is above its bound
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, bound, _CMP_GT_OQ)));
  }

  // The largest magnitude of four vectors as bits, so that a NaN is larger than everything.
  static std::uint32_t largest_magnitude(const Float (&x)[4]) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i largest = _mm256_setzero_si256();
    for (const Float& part : x) {
      largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(part), magnitude));
    }
    __m128i y = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0xb1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(y));
  }

  // Writes 32 values, rounded to nearest even, as bytes, and returns their sum. None is beyond -128..127.
  static std::int32_t store_rounded(const Float (&x)[4], std::uint8_t* out) {
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i q[4];
    for (std::size_t i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(x[i]);
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(packed, in_order));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    __m128i y = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1));
    return _mm_cvtsi128_si32(y);
  }

  using Double = __m256d;  // half as many lanes
  static Double set_double(double x) { return _mm256_set1_pd(x); }
  static Double widen(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  static void store(double* p, Double x) { _mm256_storeu_pd(p, x); }
  static Double multiply_add(Double a, Double b, Double c) { return _mm256_fmadd_pd(a, b, c); }
  static Double subtract_product(Double a, Double b, Double c) { return _mm256_fnmadd_pd(a, b, c); }  // c - a * b
  static Double add_exponent(Double x, Double n) {  // x * 2^(low bits of n)
    const __m256i power = _mm256_slli_epi64(_mm256_castpd_si256(n), 52);
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(x), power));
  }
  static Double keep_from(Double x, Double bound, Double value) {  // value where x >= bound, else 0, so where x is NaN
    return _mm256_and_pd(value, _mm256_cmp_pd(x, bound, _CMP_GE_OQ));
  }
  static double sum(Double x) {
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
  using Avx2::multiply_add;
  using Avx2::store;
  using Avx2::sum;
};

}  // namespace
}  // namespace foreword
