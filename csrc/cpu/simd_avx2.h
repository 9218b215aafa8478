// Vectors of eight floats on AVX2, FMA and F16C. Include only from *_avx2.cpp.
// Everything is in an anonymous namespace, so that copies compiled with other flags are never merged by the linker.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace foreword {
namespace {

struct Avx2 {
  using Float = __m256;
  using Int = __m256i;    // kLanes int32
  using Pairs = __m256i;  // kLanes pairs of int16
  static constexpr std::size_t kLanes = 8;

  static Float set(float x) { return _mm256_set1_ps(x); }
  static Float load(const float* p) { return _mm256_loadu_ps(p); }
  static Float load(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static float to_float(float x) { return x; }
  static float to_float(std::uint16_t x) { return _cvtsh_ss(x); }
  static void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
  static void store(std::uint16_t* p, Float x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  // Rounded to nearest even; what no code can hold comes out as any.
  static void store_codes(std::int16_t* p, Float x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), round(x)); }
  static void store_codes(std::int8_t* p, Float x) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(round(x), _mm_setzero_si128()));
  }

  static void store_codes(std::int16_t* p, Float x, Float y) {  // those of y behind those of x
    const __m256i codes = _mm256_packs_epi32(_mm256_cvtps_epi32(x), _mm256_cvtps_epi32(y));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(codes, 0xd8));
  }

  static Int zeros() { return _mm256_setzero_si256(); }
  static Pairs load_pairs(const std::int16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Pairs load_pairs(const std::int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Pairs set_pair(const std::int16_t* p) {  // in every lane
    std::int32_t both;
    __builtin_memcpy(&both, p, sizeof both);
    return _mm256_set1_epi32(both);
  }
  static void store_pairs(std::int16_t* p, Pairs x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  static Int add_products(Int sum, Pairs a, Pairs b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
  static Float to_floats(Int x) { return _mm256_cvtepi32_ps(x); }

  static Float multiply_add(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float multiply_subtract(Float a, Float b, Float c) { return _mm256_fmsub_ps(a, b, c); }
  static Float larger(Float a, Float b) { return _mm256_max_ps(a, b); }  // b where either is NaN
  static Float round_to_power(Float t) {                                 // 2^(low byte of t's bits - 127)
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
  }
  static Float keep_first(std::size_t n, Float x, Float rest) {  // lanes below n of x, then those of rest
    const __m256i count = _mm256_set1_epi32(static_cast<int>(n));
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_blendv_ps(rest, x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lanes)));
  }

  static float largest(Float x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  static float sum(Float x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }

 private:
  static __m128i round(Float x) {
    const __m256i codes = _mm256_cvtps_epi32(x);
    return _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
  }
};

}  // namespace
}  // namespace foreword
