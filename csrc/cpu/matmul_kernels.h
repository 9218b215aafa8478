// What the driver (matmul.cpp) asks of each instruction set, and how prepared activations lie in memory.
//
// Rows are cut into blocks so that a kernel reads one run of bytes; the last block holds the rows that are left, m of
// them.
//   int8    blocks of 4 rows; for each group of 32 k: q [m][32] int8, s [m] f32, s * sum(q) [m] f32
//   float   blocks of 6 rows; for each k: [m] f32
//
// Order of sums. 4 and 8 bits: matrix.h. F32, F16 and BF16: k is cut into runs of 64 counted from 0; a run is one chain
// of multiply-adds in ascending k from 0 (fused on AVX2 and NEON; product and sum rounded apart in the scalar kernels);
// the sums of the runs are added in ascending order from 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packed_matrix.h"

namespace foreword {

inline constexpr std::size_t kInt8Rows = 4;
inline constexpr std::size_t kFloatRows = 6;
inline constexpr std::size_t kFloatRun = 64;
inline constexpr std::size_t kInt8RecordBytes = kGroup + 2 * sizeof(float);  // of one row and group

// Rows of activations prepared for a product over `cols` inputs.
struct ActivationView {
  std::size_t num_rows, cols;
  const std::uint8_t* int8;  // null if no part is quantised
  const float* floats;       // null if every part is
};

// Where a part's outputs go: column 0 is the part's first output.
struct OutputView {
  float* out;
  std::size_t stride;
  const float* bias;  // null or [rows of the part]
  bool accumulate;
};

// Tiles [begin, end) and, where `apart` isn't 0, those that lie so far behind them, if the matrix has them: the two of
// a pair are taken together, of up to kPairRows rows. Their weights come from memory, which gives a thread that reads
// in two places more than one that reads in one.
struct TileRange {
  std::size_t begin, end, apart;
};
inline constexpr std::size_t kPairRows = 4;

struct MatmulKernels {
  // Sum of squares in double: the squares are exact, 8 lanes (k mod 8) are added in ascending k, then as
  // ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)).
  double (*sum_of_squares)(const float* x, std::size_t n);
  // out = x * factor * weight, rounded after each product.
  void (*scale_row)(const float* x, float factor, const float* weight, std::size_t n, float* out);
  // out = gate / (1 + exp(-gate)) * up.
  void (*swiglu)(const float* gate, const float* up, std::size_t n, float* out);
  // Rounds num_groups groups of one row to int8. `record` is the first group's record of the row's block of m rows.
  void (*quantise)(const float* x, std::size_t num_groups, std::uint8_t* record, std::size_t m, std::size_t row);
  // Outputs of some tiles for every row.
  void (*product_int8)(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out);
  void (*product_float)(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out);
};

extern const MatmulKernels kScalarMatmul;
extern const MatmulKernels kAvx2Matmul;
extern const MatmulKernels kNeonMatmul;

namespace {

inline std::size_t smaller(std::size_t a, std::size_t b) {
  return a < b ? a : b;
}

// Rows of the block that starts at row `first`.
inline std::size_t block_rows(std::size_t num_rows, std::size_t first, std::size_t limit) {
  return smaller(limit, num_rows - first);
}

inline const std::uint8_t* int8_block(const ActivationView& rows, std::size_t first) {
  return rows.int8 + first * (rows.cols / kGroup) * kInt8RecordBytes;
}

inline const float* float_block(const ActivationView& rows, std::size_t first) {
  return rows.floats + first * rows.cols;
}

// Rows processed together, so that their activations stay in the second-level cache while the tiles pass by.
inline std::size_t rows_per_pass(std::size_t bytes_per_row, std::size_t block) {
  const std::size_t fitting = (std::size_t{256} << 10) / bytes_per_row;
  const std::size_t rows = fitting < 48 ? 48 : fitting > 256 ? 256 : fitting;
  return rows / block * block;
}
inline constexpr std::size_t kMaxRowsPerPass = 256;

}  // namespace
}  // namespace foreword
