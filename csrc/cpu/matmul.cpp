// The products' driver: prepare the rows (norm or SwiGLU, then round or transpose), wait for all threads, multiply. One
// parallel region for all of it, or a stage of a longer one.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "matmul_avx2.h"
#include "matmul_kernels.h"
#include "matmul_neon.h"
#include "matmul_stage.h"

namespace foreword {

#if FOREWORD_HAVE_AVX2
const MatmulKernels kAvx2Matmul = {avx2::sum_of_squares, avx2::scale_row,    avx2::swiglu,
                                   avx2::quantise,       avx2::product_int8, avx2::product_float};
#endif
#if FOREWORD_HAVE_NEON
const MatmulKernels kNeonMatmul = {neon::sum_of_squares, neon::scale_row,    neon::swiglu,
                                   neon::quantise,       neon::product_int8, neon::product_float};
#endif

namespace {

// Rows of one region, so that the memory for prepared rows is bounded whatever the caller asks for.
constexpr std::size_t kMaxRowsPerRegion = 2048;

constexpr std::size_t kStagedGroups = 16;  // groups transformed at a time, on the stack

const MatmulKernels& kernels_of([[maybe_unused]] const Context& context) {
#if FOREWORD_HAVE_AVX2
  if (context.isa == InstructionSet::kAvx2) return kAvx2Matmul;
#endif
#if FOREWORD_HAVE_NEON
  if (context.isa == InstructionSet::kNeon) return kNeonMatmul;
#endif
  return kScalarMatmul;
}

float inverse_rms(const MatmulKernels& kernels, const float* x, std::size_t cols, float eps) {
  const double mean = kernels.sum_of_squares(x, cols) / static_cast<double>(cols);
  return static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps)));
}

// Up to this many rows each thread prepares them all for itself: shorter than waiting for the others. Not where SwiGLU
// comes first, whose exponentials cost more than the wait.
constexpr std::size_t kOwnRows = 2;

bool are_own(std::size_t num_rows, RowTransform::Kind kind) {
  return num_rows <= kOwnRows && kind != RowTransform::kSwiGlu;
}

// Pieces of a thread's share: the last one of a slow thread is what others may have to wait for.
constexpr std::size_t kPieces = 8;

std::size_t piece_of(std::size_t num_items, std::size_t num_threads) {
  return num_items / (kPieces * num_threads) + 1;
}

struct Needs {
  bool int8 = false, floats = false;
  explicit Needs(const PackedMatrix& matrix) {
    for (const PackedMatrix::Part& part : matrix.parts()) (is_quantised(part.view.format) ? int8 : floats) = true;
  }
};

void grow(PreparedRows::Memory& memory, Needs needs, std::size_t num_rows, std::size_t cols) {
  if (needs.int8) memory.int8.resize(std::max(memory.int8.size(), num_rows * (cols / kGroup) * kInt8RecordBytes));
  if (needs.floats) memory.floats.resize(std::max(memory.floats.size(), num_rows * cols));
}

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
void prepare_share(Context& context, const MatmulKernels& kernels, const Source& source, std::size_t thread,
                   std::uint8_t* int8, float* floats) {
  const std::size_t num_threads = context.pool.num_threads();
  const auto prepare = [&](std::size_t first, std::size_t last, std::size_t begin, std::size_t end) {
    for (std::size_t t = first; t < last; ++t) prepare_row(kernels, source, t, begin, end, int8, floats);
  };
  if (source.num_rows >= 4 * num_threads) {
    context.pool.divide(source.num_rows, piece_of(source.num_rows, num_threads), thread,
                        [&](std::size_t first, std::size_t last) { prepare(first, last, 0, source.cols); });
    return;
  }
  const std::size_t num_groups = (source.cols + kGroup - 1) / kGroup;
  const auto [begin, end] = split_evenly(num_groups, thread, num_threads);
  if (begin < end) prepare(0, source.num_rows, begin * kGroup, smaller(end * kGroup, source.cols));
}

std::size_t tiles_of(const PackedMatrix::Part& part) {
  return (part.view.rows + kTileOutputs - 1) / kTileOutputs;
}

// What a product of these rows counts a part in: tiles, or pairs of them for few rows.
std::size_t items_of(const PackedMatrix::Part& part, bool in_pairs) {
  return in_pairs ? (tiles_of(part) + 1) / 2 : tiles_of(part);
}

// Items [begin, end), counted through all parts.
void multiply_items(const MatmulKernels& kernels, const PackedMatrix& matrix, const ActivationView& rows,
                    OutputView out, bool in_pairs, std::size_t begin, std::size_t end) {
  std::size_t first = 0;
  for (const PackedMatrix::Part& part : matrix.parts()) {
    const std::size_t num_items = items_of(part, in_pairs), from = begin > first ? begin - first : 0;
    const auto product = is_quantised(part.view.format) ? kernels.product_int8 : kernels.product_float;
    if (end > first && from < num_items) {
      product(part.view, {from, smaller(end - first, num_items), in_pairs ? num_items : 0}, rows, out);
    }
    first += num_items;
    out.out += part.view.rows;
    if (out.bias != nullptr) out.bias += part.view.rows;
  }
}

// This thread's part of a product: a share of the tiles, or more where others are slower.
void multiply_share(Context& context, const MatmulKernels& kernels, const PackedMatrix& matrix,
                    const ActivationView& rows, const OutputView& out, std::size_t thread) {
  const bool in_pairs = rows.num_rows <= kPairRows;
  std::size_t num_items = 0;
  for (const PackedMatrix::Part& part : matrix.parts()) num_items += items_of(part, in_pairs);
  context.pool.divide(
      num_items, piece_of(num_items, context.pool.num_threads()), thread,
      [&](std::size_t begin, std::size_t end) { multiply_items(kernels, matrix, rows, out, in_pairs, begin, end); });
}

}  // namespace

void PreparedRows::reserve(const PackedMatrix& matrix, std::size_t num_rows, std::size_t num_threads) {
  const Needs needs(matrix);
  grow(shared, needs, smaller(num_rows, kMaxRowsPerRegion), matrix.cols());
  if (own.size() < num_threads) own.resize(num_threads);
  for (Memory& memory : own) grow(memory, needs, smaller(num_rows, kOwnRows), matrix.cols());
}

void linear_stage(Context& context, const LinearArgs& args, PreparedRows& rows, std::size_t thread) {
  const MatmulKernels& kernels = kernels_of(context);
  const Needs needs(*args.matrix);
  const std::size_t cols = args.matrix->cols();
  const bool own = are_own(args.num_rows, args.transform.kind);
  PreparedRows::Memory& memory = own ? rows.own[thread] : rows.shared;
  std::uint8_t* const int8 = needs.int8 ? memory.int8.data() : nullptr;
  float* const floats = needs.floats ? memory.floats.data() : nullptr;
  for (std::size_t first = 0; first < args.num_rows; first += kMaxRowsPerRegion) {
    if (first > 0) context.pool.barrier();  // others may still read the rows before these
    const std::size_t count = smaller(kMaxRowsPerRegion, args.num_rows - first);
    const Source source{args.x + first * args.x_stride, args.x_stride, count, cols, args.transform};
    const OutputView view{args.out + first * args.out_stride, args.out_stride, args.bias, args.accumulate};
    if (own) {
      for (std::size_t t = 0; t < count; ++t) prepare_row(kernels, source, t, 0, cols, int8, floats);
    } else {
      prepare_share(context, kernels, source, thread, int8, floats);
      context.pool.barrier();
    }
    multiply_share(context, kernels, *args.matrix, {count, cols, int8, floats}, view, thread);
  }
}

void linear(Context& context, const float* x, std::size_t x_stride, std::size_t num_rows, RowTransform transform,
            const PackedMatrix& matrix, const float* bias, bool accumulate, float* out, std::size_t out_stride) {
  thread_local PreparedRows rows;  // kept from product to product
  PreparedRows& prepared = rows;   // the caller's, on all threads
  prepared.reserve(matrix, num_rows, context.pool.num_threads());
  const LinearArgs args{x, x_stride, num_rows, transform, &matrix, bias, accumulate, out, out_stride};
  context.pool.run([&](std::size_t thread) { linear_stage(context, args, prepared, thread); });
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
