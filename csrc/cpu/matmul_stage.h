// A product as one stage of a region that has others before and after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "foreword/matrix.h"

namespace foreword {

struct LinearArgs {
  const float* x;
  std::size_t x_stride, num_rows;
  RowTransform transform;
  const PackedMatrix* matrix;
  const float* bias;
  bool accumulate;
  float* out;
  std::size_t out_stride;
};

// Rows made ready for a product: what one product left in it is gone with the next.
class PreparedRows {
 public:
  // Room for `num_rows` rows of products with `matrix`; keeps what room there is.
  void reserve(const PackedMatrix& matrix, std::size_t num_rows, std::size_t num_threads);

  struct Memory {
    std::vector<std::uint8_t> int8;
    std::vector<float> floats;
  };
  Memory shared;
  std::vector<Memory> own;  // [threads] for few rows, which each thread prepares for itself
};

// Every thread of a region calls it. Before: x is complete on all threads, and the product before has been left by all
// of them; after: a barrier completes `out`. `rows` has room for the product.
void linear_stage(Context& context, const LinearArgs& args, PreparedRows& rows, std::size_t thread);

// This thread's share of embed() in matrix.h.
void embed_stage(const Context& context, const PackedMatrix& table, const std::int32_t* token_ids,
                 std::size_t num_tokens, float* out, std::size_t out_stride, std::size_t thread);

}  // namespace foreword
