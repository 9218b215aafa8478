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
  struct Pairs {
    std::int16_t first[4], second[4];
  };
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
  static float to_float(float x) { return x; }
  static float to_float(std::uint16_t x) { return half_to_float(x); }
  static void store(float* p, Float x) { std::memcpy(p, &x, sizeof x); }
  static void store(std::uint16_t* p, Float x) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) p[lane] = float_to_half(x[lane]);
  }
  // Rounded to nearest even; what no code can hold comes out as any.
  template <class Code>
  static void store_codes(Code* p, Float x) {
    const Int bits = reinterpret_cast<Int>(x + set(0x1.8p23f));  // the low 16 bits of x + 1.5 * 2^23 are round(x)
    for (std::size_t lane = 0; lane < kLanes; ++lane) p[lane] = static_cast<Code>(bits[lane]);
  }
  static void store_codes(std::int16_t* p, Float x, Float y) {  // those of y behind those of x
    store_codes(p, x);
    store_codes(p + kLanes, y);
  }

  static Int zeros() { return Int{0, 0, 0, 0}; }
  template <class Code>
  static Pairs load_pairs(const Code* p) {
    return {{p[0], p[2], p[4], p[6]}, {p[1], p[3], p[5], p[7]}};
  }
  static Pairs set_pair(const std::int16_t* p) {  // in every lane
    return {{p[0], p[0], p[0], p[0]}, {p[1], p[1], p[1], p[1]}};
  }
  static void store_pairs(std::int16_t* p, const Pairs& x) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      p[2 * lane] = x.first[lane];
      p[2 * lane + 1] = x.second[lane];
    }
  }
  static Int add_products(Int sum, const Pairs& a, const Pairs& b) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {  // without a sign: what was never written may overflow
      const auto first = static_cast<std::uint32_t>(a.first[lane] * b.first[lane]);
      const auto second = static_cast<std::uint32_t>(a.second[lane] * b.second[lane]);
      sum[lane] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum[lane]) + first + second);
    }
    return sum;
  }
  static Float to_floats(Int x) {
    return Float{static_cast<float>(x[0]), static_cast<float>(x[1]), static_cast<float>(x[2]),
                 static_cast<float>(x[3])};
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
