// The products' driver: prepare the rows (norm or SwiGLU, then round or transpose), wait for all threads, multiply. One
// parallel region for all of it.
#include <cmath>
#include <cstring>
#include <vector>

#include "matmul_avx2.h"
#include "matmul_kernels.h"

namespace foreword {

#if FOREWORD_HAVE_AVX2
const MatmulKernels kAvx2Matmul = {avx2::sum_of_squares, avx2::scale_row,    avx2::swiglu,
                                   avx2::quantise,       avx2::product_int8, avx2::product_float};
#endif

namespace {

// Rows of one region, so that the memory for prepared rows is bounded whatever the caller asks for.
constexpr std::size_t kMaxRowsPerRegion = 2048;

constexpr std::size_t kStagedGroups = 16;  // groups transformed at a time, on the stack

const MatmulKernels& kernels_of([[maybe_unused]] const Context& context) {
#if FOREWORD_HAVE_AVX2
  if (context.isa == InstructionSet::kAvx2) return kAvx2Matmul;
#endif
  return kScalarMatmul;
}

float inverse_rms(const MatmulKernels& kernels, const float* x, std::size_t cols, float eps) {
  const double mean = kernels.sum_of_squares(x, cols) / static_cast<double>(cols);
  return static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps)));
}

// Memory for prepared rows, kept by the calling thread from product to product.
struct Workspace {
  std::vector<std::uint8_t> int8;
  std::vector<float> floats;
};

struct Source {
  const float* x;
  std::size_t stride, num_rows, cols;
  RowTransform transform;
};

// Prepares inputs [begin, end) of row t; begin is a multiple of 32, end too or the number of columns.
void prepare_row(const MatmulKernels& kernels, const Source& source, std::size_t t, std::size_t begin, std::size_t end,
                 std::uint8_t* int8, float* floats) {
  const float* x = source.x + t * source.stride;
  const RowTransform& transform = source.transform;
  const float factor =
      transform.kind == RowTransform::kRmsNorm ? inverse_rms(kernels, x, source.cols, transform.eps) : 0.0f;
  const std::size_t int8_first = t / kInt8Rows * kInt8Rows, int8_m = block_rows(source.num_rows, int8_first, kInt8Rows);
  const std::size_t float_first = t / kFloatRows * kFloatRows,
                    float_m = block_rows(source.num_rows, float_first, kFloatRows);
  alignas(64) float staged[kStagedGroups * kGroup];
  for (std::size_t k = begin; k < end; k += kStagedGroups * kGroup) {
    const std::size_t n = smaller(kStagedGroups * kGroup, end - k);
    const float* values = x + k;
    if (transform.kind == RowTransform::kRmsNorm) {
      kernels.scale_row(x + k, factor, transform.norm_weight + k, n, staged);
      values = staged;
    } else if (transform.kind == RowTransform::kSwiGlu) {
      kernels.swiglu(x + k, x + source.cols + k, n, staged);
      values = staged;
    }
    if (int8 != nullptr) {
      std::uint8_t* block = int8 + int8_first * (source.cols / kGroup) * kInt8RecordBytes;
      kernels.quantise(values, n / kGroup, block + k / kGroup * int8_m * kInt8RecordBytes, int8_m, t - int8_first);
    }
    if (floats != nullptr) {
      float* block = floats + float_first * source.cols + k * float_m + (t - float_first);
      for (std::size_t i = 0; i < n; ++i) block[i * float_m] = values[i];
    }
  }
}

// This thread's share: whole rows, or, of few rows, a range of each row's inputs.
void prepare_share(const MatmulKernels& kernels, const Source& source, std::size_t thread, std::size_t num_threads,
                   std::uint8_t* int8, float* floats) {
  if (source.num_rows >= 4 * num_threads) {
    const auto [begin, end] = split_evenly(source.num_rows, thread, num_threads);
    for (std::size_t t = begin; t < end; ++t) prepare_row(kernels, source, t, 0, source.cols, int8, floats);
    return;
  }
  const std::size_t num_groups = (source.cols + kGroup - 1) / kGroup;
  const auto [begin, end] = split_evenly(num_groups, thread, num_threads);
  if (begin == end) return;
  for (std::size_t t = 0; t < source.num_rows; ++t) {
    prepare_row(kernels, source, t, begin * kGroup, smaller(end * kGroup, source.cols), int8, floats);
  }
}

void multiply_share(const MatmulKernels& kernels, const PackedMatrix& matrix, const ActivationView& rows,
                    OutputView out, std::size_t thread, std::size_t num_threads) {
  for (const PackedMatrix::Part& part : matrix.parts()) {
    const std::size_t num_tiles = (part.view.rows + kTileOutputs - 1) / kTileOutputs;
    const auto [begin, end] = split_evenly(num_tiles, thread, num_threads);
    const auto product = is_quantised(part.view.format) ? kernels.product_int8 : kernels.product_float;
    if (begin < end) product(part.view, begin, end, rows, out);
    out.out += part.view.rows;
    if (out.bias != nullptr) out.bias += part.view.rows;
  }
}

}  // namespace

void linear(Context& context, const float* x, std::size_t x_stride, std::size_t num_rows, RowTransform transform,
            const PackedMatrix& matrix, const float* bias, bool accumulate, float* out, std::size_t out_stride) {
  thread_local Workspace workspace;
  const MatmulKernels& kernels = kernels_of(context);
  const std::size_t cols = matrix.cols();
  bool any_int8 = false, any_float = false;
  for (const PackedMatrix::Part& part : matrix.parts()) (is_quantised(part.view.format) ? any_int8 : any_float) = true;
  for (std::size_t first = 0; first < num_rows; first += kMaxRowsPerRegion) {
    const std::size_t count = smaller(kMaxRowsPerRegion, num_rows - first);
    if (any_int8) workspace.int8.resize(count * (cols / kGroup) * kInt8RecordBytes);
    if (any_float) workspace.floats.resize(count * cols);
    std::uint8_t* int8 = any_int8 ? workspace.int8.data() : nullptr;
    float* floats = any_float ? workspace.floats.data() : nullptr;
    const Source source{x + first * x_stride, x_stride, count, cols, transform};
    const OutputView view{out + first * out_stride, out_stride, bias, accumulate};
    const std::size_t num_threads = context.pool.num_threads();
    context.pool.run([&](std::size_t thread) {
      prepare_share(kernels, source, thread, num_threads, int8, floats);
      context.pool.barrier();
      multiply_share(kernels, matrix, {count, cols, int8, floats}, view, thread, num_threads);
    });
  }
}

void rms_norm(Context& context, const float* x, std::size_t x_stride, std::size_t num_rows, std::size_t cols,
              const float* weight, float eps, float* out, std::size_t out_stride) {
  const MatmulKernels& kernels = kernels_of(context);
  context.pool.run([&](std::size_t thread) {
    const auto [begin, end] = split_evenly(num_rows, thread, context.pool.num_threads());
    for (std::size_t t = begin; t < end; ++t) {
      const float* row = x + t * x_stride;
      kernels.scale_row(row, inverse_rms(kernels, row, cols, eps), weight, cols, out + t * out_stride);
    }
  });
}

}  // namespace foreword
