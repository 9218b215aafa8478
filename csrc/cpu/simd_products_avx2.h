// What products need beyond simd_avx2.h: packed weights, and 8 outputs by 4 inputs of int8. Include only from
// *_avx2.cpp.
//
// 4 bits: unsigned x signed products of pairs are added in int16; 8 steps of a group can't overflow it (15 * 127 * 2 *
// 8 < 32768), so they are widened once. 8 bits: |w| times x with w's sign, widened at each step.
#pragma once

#include "simd_avx2.h"

namespace foreword {
namespace {

struct Avx2Products : Avx2 {
  static Float load_floats(const std::uint8_t* p) { return _mm256_castsi256_ps(load_codes(p)); }
  static void store_floats(std::uint8_t* p, Float x) { store_codes(p, _mm256_castps_si256(x)); }
  static Float load_halves(const std::uint8_t* p) { return _mm256_cvtph_ps(half_register(p)); }
  static Float load_bf16(const std::uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half_register(p)), 16));
  }
  static Float load_bytes(const std::uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static Float set_float(const std::uint8_t* p) {
    float value;
    __builtin_memcpy(&value, p, sizeof value);
    return _mm256_set1_ps(value);
  }
  static Float negate(Float x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }

  using Codes = __m256i;  // [8 outputs][4 inputs] of 8 bits
  static Codes load_codes(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void store_codes(std::uint8_t* p, Codes x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  static Codes low_nibbles(Codes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
  static Codes high_nibbles(Codes x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
  static Codes set_four(const std::uint8_t* p) {  // 4 inputs for every output
    std::int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
  }

  using NibbleSum = __m256i;  // [8 outputs][2] int16
  // Adds the products of 16 outputs; what `is_first` adds to is nothing.
  static void add_nibbles(NibbleSum (&sum)[2], bool is_first, Codes low, Codes high, Codes x) {
    const __m256i a = _mm256_maddubs_epi16(low, x), b = _mm256_maddubs_epi16(high, x);
    sum[0] = is_first ? a : _mm256_add_epi16(sum[0], a);
    sum[1] = is_first ? b : _mm256_add_epi16(sum[1], b);
    pin(sum[0]);
    pin(sum[1]);
  }
  static Float nibble_floats(NibbleSum sum) { return _mm256_cvtepi32_ps(add_pairs(sum)); }

  struct ByteCodes {
    __m256i signs, size;
  };
  static ByteCodes byte_codes(const std::uint8_t* p) {
    const __m256i w = load_codes(p);
    return {w, _mm256_abs_epi8(w)};
  }
  using ByteSum = __m256i;  // [8 outputs] int32
  static void add_bytes(ByteSum& sum, bool is_first, ByteCodes w, Codes x) {
    const __m256i fours = add_pairs(_mm256_maddubs_epi16(w.size, _mm256_sign_epi8(x, w.signs)));
    sum = is_first ? fours : _mm256_add_epi32(sum, fours);
    pin(sum);
  }
  static Float byte_floats(ByteSum sum) { return _mm256_cvtepi32_ps(sum); }

 private:
  // Keeps the compiler from gathering the products of several steps before adding them: it would run out of registers.
  static void pin(__m256i& x) { asm("" : "+x"(x)); }
  static __m128i half_register(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static __m256i add_pairs(__m256i x) { return _mm256_madd_epi16(x, _mm256_set1_epi16(1)); }
};

}  // namespace
}  // namespace foreword
