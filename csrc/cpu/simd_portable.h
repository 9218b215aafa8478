// Vectors of four floats in the compiler's own extension: any machine, no instruction set assumed.
// Everything is in an anonymous namespace, so that copies compiled with other flags are never merged by the linker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "half.h"

namespace foreword {
namespace {

struct Portable {
  typedef float Float __attribute__((vector_size(16)));
  typedef std::int32_t Int __attribute__((vector_size(16)));
  static constexpr std::size_t kLanes = 4;

  static Float set(float x) { return Float{x, x, x, x}; }
  static Float load(const float* p) {
    Float x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static Float load(const std::uint16_t* p) {
    return Float{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
  }
  static Float load(const std::int8_t* p) {
    return Float{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])};
  }
  static float to_float(float x) { return x; }
  static float to_float(std::uint16_t x) { return half_to_float(x); }
  static float to_float(std::int8_t x) { return static_cast<float>(x); }
  static void store(float* p, Float x) { std::memcpy(p, &x, sizeof x); }
  static void store(std::uint16_t* p, Float x) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) p[lane] = float_to_half(x[lane]);
  }
  static void store_low_bytes(std::int8_t* p, Float x) {  // the low byte of each lane's bits
    const Int bits = reinterpret_cast<Int>(x);
    for (std::size_t lane = 0; lane < kLanes; ++lane) p[lane] = static_cast<std::int8_t>(bits[lane]);
  }

  static Float multiply_add(Float a, Float b, Float c) { return a * b + c; }       // rounded twice
  static Float multiply_subtract(Float a, Float b, Float c) { return a * b - c; }  // rounded twice
  static Float larger(Float a, Float b) { return a > b ? a : b; }                  // b where either is NaN
  static Float round_to_power(Float t) {                                           // 2^(low byte of t's bits - 127)
    const Int bits = reinterpret_cast<Int>(t) << 23;
    return reinterpret_cast<Float>(bits);
  }
  static Float keep_first(std::size_t n, Float x, Float rest) {  // lanes below n of x, then those of rest
    const std::int32_t count = static_cast<std::int32_t>(n);
    return Int{0, 1, 2, 3} < Int{count, count, count, count} ? x : rest;
  }

  static float largest(Float x) {
    const float low = x[0] > x[2] ? x[0] : x[2], high = x[1] > x[3] ? x[1] : x[3];
    return low > high ? low : high;
  }
  static float sum(Float x) { return (x[0] + x[2]) + (x[1] + x[3]); }
};

}  // namespace
}  // namespace foreword
