// The passes of sampling_isa.h, written once for the instruction sets with eight lanes and a fused multiply-add; `Simd`
// is one of simd_rows_*.h. Included from the one .cpp of an instruction set.
#pragma once

#include "sampling_isa.h"

namespace foreword {
namespace {

constexpr std::size_t kVectors = 4;  // of a step of a long row; what is left is padded
template <class Simd>
constexpr std::size_t kStep = kVectors * Simd::kLanes;

// The last, short step of a row, padded with -infinity.
template <class Simd>
struct PaddedStep {
  float logits[kStep<Simd>];
  PaddedStep(const float* rest, std::size_t count) {
    for (std::size_t i = 0; i < kStep<Simd>; ++i) logits[i] = i < count ? rest[i] : -__builtin_inff();
  }
};

// larger(new, old) is old where new is NaN.
template <class Simd>
inline typename Simd::Float larger_of_step(const float* logits, typename Simd::Float peaks) {
  const auto a = Simd::larger(Simd::load(logits), peaks);
  const auto b = Simd::larger(Simd::load(logits + Simd::kLanes), peaks);
  const auto c = Simd::larger(Simd::load(logits + 2 * Simd::kLanes), a);
  const auto d = Simd::larger(Simd::load(logits + 3 * Simd::kLanes), b);
  return Simd::larger(c, d);
}

template <class Simd>
float largest(const float* logits, std::size_t count) {
  const std::size_t whole = count / kStep<Simd> * kStep<Simd>;
  auto peaks = Simd::set(-__builtin_inff());
  for (std::size_t i = 0; i < whole; i += kStep<Simd>) peaks = larger_of_step<Simd>(logits + i, peaks);
  if (whole != count) peaks = larger_of_step<Simd>(PaddedStep<Simd>(logits + whole, count - whole).logits, peaks);
  return Simd::largest(peaks);
}

// Bit i is set where logits[i] > bound, of one step.
template <class Simd>
inline std::uint32_t above_of_step(const float* logits, typename Simd::Float bound) {
  static_assert(kStep<Simd> <= 32 && kStep<Simd> <= kGatherSlack);
  std::uint32_t bits = 0;
  for (std::size_t v = 0; v < kVectors; ++v) {
    bits |= Simd::above(Simd::load(logits + v * Simd::kLanes), bound) << (v * Simd::kLanes);
  }
  return bits;
}

template <class Simd>
std::size_t count_above(const float* logits, std::size_t count, float bound) {
  const std::size_t whole = count / kStep<Simd> * kStep<Simd>;
  const auto bounds = Simd::set(bound);
  std::size_t above = 0;
  for (std::size_t i = 0; i < whole; i += kStep<Simd>) {
    above += static_cast<std::size_t>(__builtin_popcount(above_of_step<Simd>(logits + i, bounds)));
  }
  const PaddedStep<Simd> rest(logits + whole, count - whole);
  return above + static_cast<std::size_t>(__builtin_popcount(above_of_step<Simd>(rest.logits, bounds)));
}

template <class Simd>
std::size_t gather_above(const float* logits, std::size_t begin, std::size_t count, float bound, std::int32_t* ids,
                         std::size_t capacity, std::size_t* next) {
  const auto bounds = Simd::set(bound);
  std::size_t found = 0, i = begin;
  while (i < count && found + kGatherSlack <= capacity) {
    const bool is_whole = count - i >= kStep<Simd>;
    std::uint32_t bits = is_whole ? above_of_step<Simd>(logits + i, bounds)
                                  : above_of_step<Simd>(PaddedStep<Simd>(logits + i, count - i).logits, bounds);
    for (; bits != 0; bits &= bits - 1) ids[found++] = static_cast<std::int32_t>(i) + __builtin_ctz(bits);
    i = is_whole ? i + kStep<Simd> : count;
  }
  *next = i;
  return found;
}

// e^x for x <= 0, 0 below -708 and for NaN: e^x = 2^n p(r), n = round(x / ln 2), r = x - n ln 2 with ln 2 in two parts,
// p the Taylor polynomial of degree 13, whose rest is below 1e-17 for |r| <= ln 2 / 2.
template <class Simd>
inline typename Simd::Double exponential(typename Simd::Double x) {
  const auto magic = Simd::set_double(0x1.8p52);  // x + magic holds round(x) in its low bits
  const auto shifted = Simd::multiply_add(x, Simd::set_double(0x1.71547652b82fep+0), magic);
  const auto n = shifted - magic;
  auto r = Simd::subtract_product(n, Simd::set_double(0x1.62e42fee00000p-1), x);  // exact: 21 low bits are zero
  r = Simd::subtract_product(n, Simd::set_double(0x1.a39ef35793c76p-33), r);
  constexpr double kCoefficients[] = {
      1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
      1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
  auto p = Simd::set_double(1.0 / 6227020800.0);
  for (const double coefficient : kCoefficients) p = Simd::multiply_add(p, r, Simd::set_double(coefficient));
  return Simd::keep_from(x, Simd::set_double(-708.0), Simd::add_exponent(p, shifted));
}

template <class Simd>
double weigh(const float* logits, std::size_t count, float peak, double inverse_temperature, double* weights) {
  const auto peaks = Simd::set_double(static_cast<double>(peak)), inverse = Simd::set_double(inverse_temperature);
  const auto weights_at = [&](const float* four) { return exponential<Simd>((Simd::widen(four) - peaks) * inverse); };
  constexpr std::size_t kFour = Simd::kLanes / 2;
  const std::size_t whole = count / kFour * kFour;
  auto sums = Simd::set_double(0.0);
  for (std::size_t i = 0; i < whole; i += kFour) {
    const auto four = weights_at(logits + i);
    if (weights != nullptr) Simd::store(weights + i, four);
    sums = sums + four;
  }
  if (whole != count) {
    const auto four = weights_at(PaddedStep<Simd>(logits + whole, count - whole).logits);
    double lanes[kFour];
    Simd::store(lanes, four);
    for (std::size_t i = whole; weights != nullptr && i < count; ++i) weights[i] = lanes[i - whole];
    sums = sums + four;
  }
  return Simd::sum(sums);
}

}  // namespace
}  // namespace foreword
