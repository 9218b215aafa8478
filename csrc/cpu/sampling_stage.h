// The largest logit of each row as a stage of a region that has others before and after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "foreword/context.h"

namespace foreword {

// Rows of which the first of the largest logits is wanted: what sample() in sampling.h gives a greedy row.
class BestStage {
 public:
  // Rows of logits lie `stride` apart; of each, the first `vocab_size` count.
  BestStage(const Context& context, const float* logits, std::size_t stride, std::size_t num_rows,
            std::size_t vocab_size);

  // Every thread calls it, on logits that are complete.
  void work(std::size_t thread, std::size_t row);

  // Once all threads have left work() for the row.
  std::int32_t token(std::size_t row) const;

  std::size_t num_rows() const { return num_rows_; }

 private:
  struct Best {
    float peak;
    std::int32_t id;
  };

  const Context& context_;
  const float* logits_;
  std::size_t stride_, num_rows_, vocab_size_;
  std::vector<Best> found_;  // [rows, threads]: of each thread's ids, which ascend from thread to thread
};

}  // namespace foreword
