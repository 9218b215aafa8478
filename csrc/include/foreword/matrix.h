// Packed weight matrices and the products over them.
//
// Letters: T rows of activations (tokens), N outputs (rows of the weight), K inputs, G = K / 32 groups.
//
// Exactness (design.md 4): each output element is a function of its own activation row and weight row. The order of
// its sums over K is fixed here and does not depend on T, on tiling or on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "foreword/context.h"

namespace foreword {

// How one part of a matrix lies in the file: the GGML block formats that pack exactly. Each has a packed layout of its
// own (csrc/cpu/packed_matrix.h) of as many bytes a weight:
//   kF32, kF16, kBf16
//   kQ8_0   signed 8-bit, groups of 32 with one scale:   w = scale * q
//   kQ4_0   4-bit 0..15, groups of 32 with one scale:    w = scale * q + minimum, minimum = -8 * scale
//   kQ4_1   4-bit 0..15, groups of 32:                   w = scale * q + minimum
//   kQ4_K   as kQ4_1, with scale = d * 6 bits and minimum = -dmin * 6 bits, d and dmin of 8 groups
enum class SourceFormat { kF32, kF16, kBf16, kQ4_0, kQ4_1, kQ4_K, kQ8_0 };

std::size_t source_row_bytes(SourceFormat format, std::size_t cols);  // 0 when cols does not fit the format

struct MatrixSource {
  SourceFormat format;
  std::size_t rows, cols;
  const std::uint8_t* data;       // rows * source_row_bytes(format, cols) bytes, any alignment
  const std::int32_t* row_order;  // null, or [rows]: output row i is source row row_order[i]
};

// Weight matrix of N outputs and K inputs. Parts of different formats (a Q4_K q beside a Q6_K v) lie behind one
// another; outputs are the concatenation of the parts' outputs. Immutable after construction.
class PackedMatrix {
 public:
  PackedMatrix(std::span<const MatrixSource> parts, Context& context);  // packs in parallel
  ~PackedMatrix();
  PackedMatrix(PackedMatrix&&) noexcept;

  std::size_t rows() const;  // N
  std::size_t cols() const;  // K
  std::size_t num_bytes() const;

  struct Part;
  std::span<const Part> parts() const;

 private:
  friend class Packing;
  explicit PackedMatrix(std::vector<Part> parts);

  std::vector<Part> parts_;
  std::size_t rows_ = 0, cols_ = 0;
};

// out[t, :] = dequantised row token_ids[t] of the matrix; a row whose id the matrix lacks is left as it is.
// out: [T, K] f32 with row stride out_stride.
void embed(Context& context, const PackedMatrix& table, std::span<const std::int32_t> token_ids, float* out,
           std::size_t out_stride);

// What happens to a row of x before the product.
struct RowTransform {
  enum Kind { kNone, kRmsNorm, kSwiGlu } kind = kNone;
  const float* norm_weight = nullptr;  // kRmsNorm: [K]
  float eps = 0;                       // kRmsNorm
  // kSwiGlu: x is [T, 2K]: silu(first K) * last K
};

// out[t, n] = (accumulate ? out[t, n] : 0) + (sum_k f(x[t])[k] * w[n, k] + (bias ? bias[n] : 0))
// x: [T, K] (or [T, 2K] for SwiGLU) f32 with row stride x_stride; out: [T, N] f32 with row stride out_stride.
// Formats with 8 or 4 bits round f(x[t]) to int8 per group of 32 first:
//   s = max|x| / 127, q = round_to_even(x * (127 / max|x|)), both f32; q = 0, s = 0 where max|x| is 0 or so small that
//   127 / max|x| overflows; q = 0, s = NaN in a group with a NaN or an infinity, so that every output shows it;
//   acc = fma(float(sum q_w q_x), scale * s, acc), then for 4 bits acc = fma(minimum, s * float(sum q_x), acc),
//   groups in ascending order from acc = 0.
// Wider formats sum in f32 in a fixed order (csrc/cpu/matmul_kernels.h). bias, then accumulate, are added with one
// rounding each.
void linear(Context& context, const float* x, std::size_t x_stride, std::size_t num_rows, RowTransform transform,
            const PackedMatrix& matrix, const float* bias, bool accumulate, float* out, std::size_t out_stride);

// out[t] = x[t] * (1 / sqrt(mean(x[t]^2) + eps)) * weight. Rows with strides; in place allowed.
void rms_norm(Context& context, const float* x, std::size_t x_stride, std::size_t num_rows, std::size_t cols,
              const float* weight, float eps, float* out, std::size_t out_stride);

}  // namespace foreword
