// The AVX2 kernels' parts; see MatmulKernels. Declarations only, safe to include anywhere.
#pragma once

#include "matmul_kernels.h"

namespace foreword::avx2 {

double sum_of_squares(const float* x, std::size_t n);
void scale_row(const float* x, float factor, const float* weight, std::size_t n, float* out);
void swiglu(const float* gate, const float* up, std::size_t n, float* out);
void quantise(const float* x, std::size_t num_groups, std::uint8_t* record, std::size_t m, std::size_t row);
void product_int8(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out);
void product_float(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out);

}  // namespace foreword::avx2
