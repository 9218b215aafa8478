// What products need beyond simd_neon.h: packed weights, and 8 outputs by 4 inputs of int8, by the dot products of
// ARMv8.2 (codes of 4 bits are as good as signed). Include only from *_neon.cpp.
#pragma once

#include "simd_neon.h"

namespace foreword {
namespace {

struct NeonProducts : Neon {
  static Float load_floats(const std::uint8_t* p) {
    return {vreinterpretq_f32_u8(vld1q_u8(p)), vreinterpretq_f32_u8(vld1q_u8(p + 16))};
  }
  static void store_floats(std::uint8_t* p, Float x) {
    vst1q_u8(p, vreinterpretq_u8_f32(x.low));
    vst1q_u8(p + 16, vreinterpretq_u8_f32(x.high));
  }
  static Float load_halves(const std::uint8_t* p) { return from_halves(vreinterpretq_u16_u8(vld1q_u8(p))); }
  static Float load_bf16(const std::uint8_t* p) {
    const uint16x8_t x = vreinterpretq_u16_u8(vld1q_u8(p));
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(x), 16))};
  }
  static Float load_bytes(const std::uint8_t* p) {
    const uint16x8_t x = vmovl_u8(vld1_u8(p));
    return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(x))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(x)))};
  }
  static Float set_float(const std::uint8_t* p) {
    float value;
    __builtin_memcpy(&value, p, sizeof value);
    return set(value);
  }
  static Float negate(Float x) { return {vnegq_f32(x.low), vnegq_f32(x.high)}; }

  struct Codes {  // [8 outputs][4 inputs] of 8 bits
    uint8x16_t low, high;
  };
  static Codes load_codes(const std::uint8_t* p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
  static void store_codes(std::uint8_t* p, Codes x) {
    vst1q_u8(p, x.low);
    vst1q_u8(p + 16, x.high);
  }
  static Codes low_nibbles(Codes x) { return {vandq_u8(x.low, vdupq_n_u8(15)), vandq_u8(x.high, vdupq_n_u8(15))}; }
  static Codes high_nibbles(Codes x) { return {vshrq_n_u8(x.low, 4), vshrq_n_u8(x.high, 4)}; }
  static int8x16_t set_four(const std::uint8_t* p) {  // 4 inputs for every output
    std::int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }

  struct ByteSum {  // [8 outputs] int32
    int32x4_t low, high;
  };
  static Codes byte_codes(const std::uint8_t* p) { return load_codes(p); }
  static void add_bytes(ByteSum& sum, bool is_first, Codes w, int8x16_t x) {  // what `is_first` adds to is nothing
    if (is_first) sum = {vdupq_n_s32(0), vdupq_n_s32(0)};
    sum.low = vdotq_s32(sum.low, vreinterpretq_s8_u8(w.low), x);
    sum.high = vdotq_s32(sum.high, vreinterpretq_s8_u8(w.high), x);
  }
  static Float byte_floats(ByteSum sum) { return {vcvtq_f32_s32(sum.low), vcvtq_f32_s32(sum.high)}; }

  using NibbleSum = ByteSum;
  static void add_nibbles(NibbleSum (&sum)[2], bool is_first, Codes low, Codes high, int8x16_t x) {
    add_bytes(sum[0], is_first, low, x);
    add_bytes(sum[1], is_first, high, x);
  }
  static Float nibble_floats(NibbleSum sum) { return byte_floats(sum); }
};

}  // namespace
}  // namespace foreword
