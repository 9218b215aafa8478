#include <immintrin.h>

#include "sampling_isa.h"

namespace foreword {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kStep = 4 * kLanes;  // floats to a step of a long row; what is left is padded
static_assert(kStep <= kGatherSlack);

// The last, short step of a row, padded with -infinity.
struct PaddedStep {
  float logits[kStep];
  PaddedStep(const float* rest, std::size_t count) {
    for (std::size_t i = 0; i < kStep; ++i) logits[i] = i < count ? rest[i] : -__builtin_inff();
  }
};

// max(new, old) is old where new is NaN.
inline __m256 larger_of_step(const float* logits, __m256 peaks) {
  const __m256 a = _mm256_max_ps(_mm256_loadu_ps(logits), peaks);
  const __m256 b = _mm256_max_ps(_mm256_loadu_ps(logits + kLanes), peaks);
  const __m256 c = _mm256_max_ps(_mm256_loadu_ps(logits + 2 * kLanes), a);
  const __m256 d = _mm256_max_ps(_mm256_loadu_ps(logits + 3 * kLanes), b);
  return _mm256_max_ps(c, d);
}

float largest(const float* logits, std::size_t count) {
  const std::size_t whole = count / kStep * kStep;
  __m256 peaks = _mm256_set1_ps(-__builtin_inff());
  for (std::size_t i = 0; i < whole; i += kStep) peaks = larger_of_step(logits + i, peaks);
  if (whole != count) peaks = larger_of_step(PaddedStep(logits + whole, count - whole).logits, peaks);
  __m128 peak = _mm_max_ps(_mm256_castps256_ps128(peaks), _mm256_extractf128_ps(peaks, 1));
  peak = _mm_max_ps(peak, _mm_movehl_ps(peak, peak));
  return _mm_cvtss_f32(_mm_max_ss(peak, _mm_movehdup_ps(peak)));
}

// Bit i is set where logits[i] > bound, of one step.
inline std::uint32_t above_of_step(const float* logits, __m256 bound) {
  std::uint32_t bits = 0;
  for (std::size_t v = 0; v < 4; ++v) {
    const __m256 above = _mm256_cmp_ps(_mm256_loadu_ps(logits + v * kLanes), bound, _CMP_GT_OQ);
    bits |= static_cast<std::uint32_t>(_mm256_movemask_ps(above)) << (v * kLanes);
  }
  return bits;
}

std::size_t count_above(const float* logits, std::size_t count, float bound) {
  const std::size_t whole = count / kStep * kStep;
  const __m256 bounds = _mm256_set1_ps(bound);
  std::size_t above = 0;
  for (std::size_t i = 0; i < whole; i += kStep) {
    above += static_cast<std::size_t>(__builtin_popcount(above_of_step(logits + i, bounds)));
  }
  const PaddedStep rest(logits + whole, count - whole);
  return above + static_cast<std::size_t>(__builtin_popcount(above_of_step(rest.logits, bounds)));
}

std::size_t gather_above(const float* logits, std::size_t begin, std::size_t count, float bound, std::int32_t* ids,
                         std::size_t capacity, std::size_t* next) {
  const __m256 bounds = _mm256_set1_ps(bound);
  std::size_t found = 0, i = begin;
  while (i < count && found + kGatherSlack <= capacity) {
    const bool is_whole = count - i >= kStep;
    std::uint32_t bits =
        is_whole ? above_of_step(logits + i, bounds) : above_of_step(PaddedStep(logits + i, count - i).logits, bounds);
    for (; bits != 0; bits &= bits - 1) ids[found++] = static_cast<std::int32_t>(i) + __builtin_ctz(bits);
    i = is_whole ? i + kStep : count;
  }
  *next = i;
  return found;
}

// e^x for x <= 0, 0 below -708 and for NaN: e^x = 2^n p(r), n = round(x / ln 2), r = x - n ln 2 with ln 2 in two parts,
// p the Taylor polynomial of degree 13, whose rest is below 1e-17 for |r| <= ln 2 / 2.
inline __m256d exponential(__m256d x) {
  const __m256d magic = _mm256_set1_pd(0x1.8p52);  // x + magic holds round(x) in its low bits
  const __m256d is_kept = _mm256_cmp_pd(x, _mm256_set1_pd(-708.0), _CMP_GE_OQ);
  const __m256d shifted = _mm256_fmadd_pd(x, _mm256_set1_pd(0x1.71547652b82fep+0), magic);
  const __m256d n = _mm256_sub_pd(shifted, magic);
  __m256d r = _mm256_fnmadd_pd(n, _mm256_set1_pd(0x1.62e42fee00000p-1), x);  // exact: the high part has 21 zero bits
  r = _mm256_fnmadd_pd(n, _mm256_set1_pd(0x1.a39ef35793c76p-33), r);
  constexpr double kCoefficients[] = {
      1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
      1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
  __m256d p = _mm256_set1_pd(1.0 / 6227020800.0);
  for (const double coefficient : kCoefficients) p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(coefficient));
  const __m256i power = _mm256_slli_epi64(_mm256_castpd_si256(shifted), 52);
  const __m256d result = _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(p), power));
  return _mm256_and_pd(result, is_kept);
}

double weigh(const float* logits, std::size_t count, float peak, double inverse_temperature, double* weights) {
  const __m256d peaks = _mm256_set1_pd(peak), inverse = _mm256_set1_pd(inverse_temperature);
  const auto weights_at = [&](const float* four) {
    return exponential(_mm256_mul_pd(_mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(four)), peaks), inverse));
  };
  const std::size_t whole = count / 4 * 4;
  __m256d sums = _mm256_setzero_pd();
  for (std::size_t i = 0; i < whole; i += 4) {
    const __m256d four = weights_at(logits + i);
    if (weights != nullptr) _mm256_storeu_pd(weights + i, four);
    sums = _mm256_add_pd(sums, four);
  }
  if (whole != count) {
    const __m256d four = weights_at(PaddedStep(logits + whole, count - whole).logits);
    double lanes[4];
    _mm256_storeu_pd(lanes, four);
    for (std::size_t i = whole; weights != nullptr && i < count; ++i) weights[i] = lanes[i - whole];
    sums = _mm256_add_pd(sums, four);
  }
  const __m128d halves = _mm_add_pd(_mm256_castpd256_pd128(sums), _mm256_extractf128_pd(sums, 1));
  return _mm_cvtsd_f64(halves) + _mm_cvtsd_f64(_mm_unpackhi_pd(halves, halves));
}

}  // namespace

const LogitPasses kLogitPassesAvx2{largest, count_above, gather_above, weigh};

}  // namespace foreword
