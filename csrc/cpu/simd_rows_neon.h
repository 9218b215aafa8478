// What whole rows need beyond simd_neon.h: rounding to integers, exponents, doubles. Include only from *_neon.cpp.
#pragma once

#include "simd_neon.h"

namespace foreword {
namespace {

struct NeonRows : Neon {
  static Float smaller(Float a, Float b) {  // b where either is NaN
    return {vbslq_f32(vcltq_f32(a.low, b.low), a.low, b.low), vbslq_f32(vcltq_f32(a.high, b.high), a.high, b.high)};
  }
  static Float negate(Float x) { return {vnegq_f32(x.low), vnegq_f32(x.high)}; }
  static Float add_exponent(Float x, Float n) {  // x * 2^(low bits of n)
    return {add_exponent(x.low, n.low), add_exponent(x.high, n.high)};
  }
  static std::uint32_t above(Float x, Float bound) {  // bit i is set where lane i is above its bound
    const uint32x4_t low = {1, 2, 4, 8}, high = {16, 32, 64, 128};
    return vaddvq_u32(
        vorrq_u32(vandq_u32(vcgtq_f32(x.low, bound.low), low), vandq_u32(vcgtq_f32(x.high, bound.high), high)));
  }

  // The largest magnitude of four vectors as bits, so that a NaN is larger than everything.
  static std::uint32_t largest_magnitude(const Float (&x)[4]) {
    uint32x4_t largest = vdupq_n_u32(0);
    for (const Float& part : x) {
      largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(part.low)));
      largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(part.high)));
    }
    return vmaxvq_u32(largest);
  }

  // Writes 32 values, rounded to nearest even, as bytes, and returns their sum. None is beyond -128..127.
  static std::int32_t store_rounded(const Float (&x)[4], std::uint8_t* out) {
    int32x4_t sum = vdupq_n_s32(0);
    for (std::size_t i = 0; i < 4; ++i) {
      const int32x4_t low = vcvtnq_s32_f32(x[i].low), high = vcvtnq_s32_f32(x[i].high);
      sum = vaddq_s32(sum, vaddq_s32(low, high));
      vst1_u8(out + i * 8, vreinterpret_u8_s8(vmovn_s16(vcombine_s16(vmovn_s32(low), vmovn_s32(high)))));
    }
    return vaddvq_s32(sum);
  }

  struct Double {  // half as many lanes
    float64x2_t low, high;
    friend Double operator+(Double a, Double b) { return {vaddq_f64(a.low, b.low), vaddq_f64(a.high, b.high)}; }
    friend Double operator-(Double a, Double b) { return {vsubq_f64(a.low, b.low), vsubq_f64(a.high, b.high)}; }
    friend Double operator*(Double a, Double b) { return {vmulq_f64(a.low, b.low), vmulq_f64(a.high, b.high)}; }
  };
  static Double set_double(double x) { return {vdupq_n_f64(x), vdupq_n_f64(x)}; }
  static Double widen(const float* p) {
    const float32x4_t four = vld1q_f32(p);
    return {vcvt_f64_f32(vget_low_f32(four)), vcvt_high_f64_f32(four)};
  }
  static void store(double* p, Double x) {
    vst1q_f64(p, x.low);
    vst1q_f64(p + 2, x.high);
  }
  static Double multiply_add(Double a, Double b, Double c) {
    return {vfmaq_f64(c.low, a.low, b.low), vfmaq_f64(c.high, a.high, b.high)};
  }
  static Double subtract_product(Double a, Double b, Double c) {  // c - a * b
    return {vfmsq_f64(c.low, a.low, b.low), vfmsq_f64(c.high, a.high, b.high)};
  }
  static Double add_exponent(Double x, Double n) {  // x * 2^(low bits of n)
    return {add_exponent(x.low, n.low), add_exponent(x.high, n.high)};
  }
  static Double keep_from(Double x, Double bound, Double value) {  // value where x >= bound, else 0, so where x is NaN
    return {keep(value.low, vcgeq_f64(x.low, bound.low)), keep(value.high, vcgeq_f64(x.high, bound.high))};
  }
  static double sum(Double x) {
    const float64x2_t two = vaddq_f64(x.low, x.high);
    return two[0] + two[1];
  }
  using Neon::multiply_add;
  using Neon::store;
  using Neon::sum;

 private:
  static float32x4_t add_exponent(float32x4_t x, float32x4_t n) {
    const int32x4_t power = vshlq_n_s32(vreinterpretq_s32_f32(n), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), power));
  }
  static float64x2_t add_exponent(float64x2_t x, float64x2_t n) {
    const int64x2_t power = vshlq_n_s64(vreinterpretq_s64_f64(n), 52);
    return vreinterpretq_f64_s64(vaddq_s64(vreinterpretq_s64_f64(x), power));
  }
  static float64x2_t keep(float64x2_t value, uint64x2_t mask) {
    return vreinterpretq_f64_u64(vandq_u64(vreinterpretq_u64_f64(value), mask));
  }
};

}  // namespace
}  // namespace foreword
