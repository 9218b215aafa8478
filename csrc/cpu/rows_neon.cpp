#include "matmul_neon.h"
#include "rows_kernel.h"
#include "simd_rows_neon.h"

namespace foreword::neon {

double sum_of_squares(const float* x, std::size_t n) {
  return row_sum_of_squares<NeonRows>(x, n);
}

void scale_row(const float* x, float factor, const float* weight, std::size_t n, float* out) {
  row_scale<NeonRows>(x, factor, weight, n, out);
}

void swiglu(const float* gate, const float* up, std::size_t n, float* out) {
  row_swiglu<NeonRows>(gate, up, n, out);
}

void quantise(const float* x, std::size_t num_groups, std::uint8_t* record, std::size_t m, std::size_t row) {
  row_quantise<NeonRows>(x, num_groups, record, m, row);
}

}  // namespace foreword::neon
