// Passes over a row of logits, per instruction set. NaN counts as -infinity in all of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreword {

struct LogitPasses {
  float (*largest)(const float* logits, std::size_t count);                         // -infinity for an empty row
  std::size_t (*count_above)(const float* logits, std::size_t count, float bound);  // logits > bound
  // Appends the ids in [begin, count) of logits > bound, ascending, and returns how many; stops with fewer than
  // kGatherSlack places left of `capacity`. *next is the id to go on with, count at the end.
  std::size_t (*gather_above)(const float* logits, std::size_t begin, std::size_t count, float bound, std::int32_t* ids,
                              std::size_t capacity, std::size_t* next);
  // weights[i] = exp((logits[i] - peak) / temperature) in double, 0 where that is below exp(-708). `peak` is finite and
  // no logit is larger; the weight at the peak is 1. Returns their sum: lanes i % 4, each ascending, folded in halves.
  // weights may be null.
  double (*weigh)(const float* logits, std::size_t count, float peak, double inverse_temperature, double* weights);
};

inline constexpr std::size_t kGatherSlack = 32;  // ids that one step of gather_above may append

extern const LogitPasses kLogitPassesScalar;
extern const LogitPasses kLogitPassesAvx2;
extern const LogitPasses kLogitPassesNeon;

}  // namespace foreword
