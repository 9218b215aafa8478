#include "matmul_avx2.h"
#include "rows_kernel.h"
#include "simd_rows_avx2.h"

namespace foreword::avx2 {

double sum_of_squares(const float* x, std::size_t n) {
  return row_sum_of_squares<Avx2Rows>(x, n);
}

void scale_row(const float* x, float factor, const float* weight, std::size_t n, float* out) {
  row_scale<Avx2Rows>(x, factor, weight, n, out);
}

void swiglu(const float* gate, const float* up, std::size_t n, float* out) {
  row_swiglu<Avx2Rows>(gate, up, n, out);
}

void quantise(const float* x, std::size_t num_groups, std::uint8_t* record, std::size_t m, std::size_t row) {
  row_quantise<Avx2Rows>(x, num_groups, record, m, row);
}

}  // namespace foreword::avx2
