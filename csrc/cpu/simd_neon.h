// Vectors of eight floats as two of NEON's, so that sums have the order they have on AVX2. Include only from
// *_neon.cpp. Everything is in an anonymous namespace, so that copies compiled with other flags are never merged by the
// linker.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace foreword {
namespace {

struct Neon {
  struct Float {
    float32x4_t low, high;
    friend Float operator+(Float a, Float b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
    friend Float operator-(Float a, Float b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
    friend Float operator*(Float a, Float b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
    friend Float operator/(Float a, Float b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
    float operator[](std::size_t lane) const { return lane < 4 ? low[lane] : high[lane - 4]; }
  };
  struct Int {  // kLanes int32
    int32x4_t low, high;
  };
  struct Pairs {  // kLanes pairs of int16
    int16x8_t low, high;
  };
  static constexpr std::size_t kLanes = 8;

  static Float set(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static Float load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static Float load(const std::uint16_t* p) { return from_halves(vld1q_u16(p)); }
  static float to_float(float x) { return x; }
  static float to_float(std::uint16_t x) {
    __fp16 half;
    __builtin_memcpy(&half, &x, sizeof half);
    return half;
  }
  static void store(float* p, Float x) {
    vst1q_f32(p, x.low);
    vst1q_f32(p + 4, x.high);
  }
  static void store(std::uint16_t* p, Float x) {  // to nearest even: what FPCR says inside a region
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x.low)));
    vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(x.high)));
  }
  // Rounded to nearest even; what no code can hold comes out as any.
  static void store_codes(std::int16_t* p, Float x) { vst1q_s16(p, round(x)); }
  static void store_codes(std::int8_t* p, Float x) { vst1_s8(p, vmovn_s16(round(x))); }
  static void store_codes(std::int16_t* p, Float x, Float y) {  // those of y behind those of x
    store_codes(p, x);
    store_codes(p + kLanes, y);
  }

  static Int zeros() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  static Pairs load_pairs(const std::int16_t* p) { return {vld1q_s16(p), vld1q_s16(p + 8)}; }
  static Pairs load_pairs(const std::int8_t* p) {
    const int8x16_t codes = vld1q_s8(p);
    return {vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes)};
  }
  static Pairs set_pair(const std::int16_t* p) {  // in every lane
    std::int32_t both;
    __builtin_memcpy(&both, p, sizeof both);
    const int16x8_t pairs = vreinterpretq_s16_s32(vdupq_n_s32(both));
    return {pairs, pairs};
  }
  static void store_pairs(std::int16_t* p, Pairs x) {
    vst1q_s16(p, x.low);
    vst1q_s16(p + 8, x.high);
  }
  static Int add_products(Int sum, Pairs a, Pairs b) {
    return {vaddq_s32(sum.low, multiply_pairs(a.low, b.low)), vaddq_s32(sum.high, multiply_pairs(a.high, b.high))};
  }
  static Float to_floats(Int x) { return {vcvtq_f32_s32(x.low), vcvtq_f32_s32(x.high)}; }

  static Float multiply_add(Float a, Float b, Float c) {
    return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
  }
  static Float multiply_subtract(Float a, Float b, Float c) {
    return {vfmaq_f32(vnegq_f32(c.low), a.low, b.low), vfmaq_f32(vnegq_f32(c.high), a.high, b.high)};
  }
  // b where either is NaN, which vmaxq_f32 would be.
  static Float larger(Float a, Float b) { return {larger(a.low, b.low), larger(a.high, b.high)}; }
  static Float round_to_power(Float t) {  // 2^(low byte of t's bits - 127)
    return {vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(t.low), 23)),
            vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(t.high), 23))};
  }
  static Float keep_first(std::size_t n, Float x, Float rest) {  // lanes below n of x, then those of rest
    const int32x4_t count = vdupq_n_s32(static_cast<std::int32_t>(n));
    const int32x4_t low = {0, 1, 2, 3}, high = {4, 5, 6, 7};
    return {vbslq_f32(vcltq_s32(low, count), x.low, rest.low), vbslq_f32(vcltq_s32(high, count), x.high, rest.high)};
  }

  static float largest(Float x) {
    const float32x4_t four = larger(x.low, x.high);
    const float even = larger(four[0], four[2]), odd = larger(four[1], four[3]);
    return larger(even, odd);
  }
  static float sum(Float x) {
    const float32x4_t four = vaddq_f32(x.low, x.high);
    return (four[0] + four[2]) + (four[1] + four[3]);
  }

 protected:
  static Float from_halves(uint16x8_t halves) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves))),
            vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(halves)))};
  }
  static float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static float larger(float a, float b) { return a > b ? a : b; }

 private:
  static int16x8_t round(Float x) {
    return vcombine_s16(vmovn_s32(vcvtnq_s32_f32(x.low)), vmovn_s32(vcvtnq_s32_f32(x.high)));
  }
  static int32x4_t multiply_pairs(int16x8_t a, int16x8_t b) {
    return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
  }
};

}  // namespace
}  // namespace foreword
