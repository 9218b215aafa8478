// Choosing tokens from logits. Each row is a function of itself alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "foreword/context.h"

namespace foreword {

// Philox 4x32-10 (Salmon et al., SC 2011) keyed by the seed, counter (sequence_index, position, 0, 0):
// words 0 and 1 make a double in [0, 1) with 53 bits: ((w1 << 32 | w0) >> 11) * 2^-53.
double uniform_at(std::uint64_t seed, std::uint32_t sequence_index, std::uint32_t position);

struct SampleRow {
  float temperature;   // below 1e-4: greedy, lowest id among the largest logits
  std::int32_t top_k;  // <= 0: all
  float top_p, min_p;
  std::uint64_t seed;
  std::uint32_t sequence_index, position;
};

// tokens[r] drawn from logits[r, :]. NaN counts as -infinity.
// p = softmax(logits / temperature) in double. Kept tokens: the top_k largest (ties: lower id first); of these the
// shortest descending run whose renormalised sum reaches top_p; of these those with p >= min_p * max p; always at least
// one. The draw u = uniform_at(...) walks the kept tokens, in descending order if any filter is set, else by id, to the
// first whose running sum exceeds u * total.
void sample(Context& context, const float* logits, std::size_t num_rows, std::size_t vocab_size, const SampleRow* rows,
            std::int32_t* tokens);

// log softmax in double. chosen_*: [R]; top_*: [R, k] best first (ties: lower id first). Rank is 1-based: 1 + the
// number of strictly larger logits.
void top_logprobs(Context& context, const float* logits, std::size_t num_rows, std::size_t vocab_size,
                  const std::int32_t* tokens, std::size_t k, float* chosen_logprobs, std::int32_t* chosen_ranks,
                  std::int32_t* top_ids, float* top_logprobs);

}  // namespace foreword
