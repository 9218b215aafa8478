#include <cmath>
#include <limits>

#include "sampling_isa.h"

namespace foreword {
namespace {

constexpr double kLowest = -708.0;  // below, exp() is not a normal number

float largest(const float* logits, std::size_t count) {
  float peak = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < count; ++i) peak = logits[i] > peak ? logits[i] : peak;
  return peak;
}

std::size_t count_above(const float* logits, std::size_t count, float bound) {
  std::size_t above = 0;
  for (std::size_t i = 0; i < count; ++i) above += logits[i] > bound;
  return above;
}

std::size_t gather_above(const float* logits, std::size_t begin, std::size_t count, float bound, std::int32_t* ids,
                         std::size_t capacity, std::size_t* next) {
  std::size_t found = 0, i = begin;
  for (; i < count && found + kGatherSlack <= capacity; ++i) {
    if (logits[i] > bound) ids[found++] = static_cast<std::int32_t>(i);
  }
  *next = i;
  return found;
}

double weigh(const float* logits, std::size_t count, float peak, double inverse_temperature, double* weights) {
  double sums[4] = {};
  for (std::size_t i = 0; i < count; ++i) {
    const double x = (static_cast<double>(logits[i]) - peak) * inverse_temperature;
    const double weight = x >= kLowest ? std::exp(x) : 0.0;
    if (weights != nullptr) weights[i] = weight;
    sums[i % 4] += weight;
  }
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

}  // namespace

const LogitPasses kLogitPassesScalar{largest, count_above, gather_above, weigh};

}  // namespace foreword
