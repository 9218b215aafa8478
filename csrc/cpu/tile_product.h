// The walk that every vector product shares: rows in passes, tiles of 16 outputs, runs of k, then the outputs. `Simd`
// is one of simd_products_*.h. Everything is in an anonymous namespace, so that copies compiled with other flags are
// never merged by the linker.
#pragma once

#include "matmul_kernels.h"

namespace foreword {
namespace {

struct RowRange {
  std::size_t first, count;
};

// out[t, n] from the sums of one tile. y = acc + bias; out = accumulate ? out + y : y.
template <class Simd>
void write_outputs(const float* acc, RowRange rows, std::size_t tile, const TileView& weights, const OutputView& view) {
  const std::size_t column = tile * kTileOutputs;
  const std::size_t width = smaller(kTileOutputs, weights.rows - column);
  if (width == kTileOutputs) {
    for (std::size_t t = 0; t < rows.count; ++t) {
      float* out = view.out + (rows.first + t) * view.stride + column;
      for (std::size_t half = 0; half < 2; ++half) {
        auto y = Simd::load(acc + t * kTileOutputs + half * Simd::kLanes);
        if (view.bias != nullptr) y = y + Simd::load(view.bias + column + half * Simd::kLanes);
        if (view.accumulate) y = Simd::load(out + half * Simd::kLanes) + y;
        Simd::store(out + half * Simd::kLanes, y);
      }
    }
    return;
  }
  for (std::size_t t = 0; t < rows.count; ++t) {
    float* out = view.out + (rows.first + t) * view.stride + column;
    for (std::size_t i = 0; i < width; ++i) {
      const float y =
          view.bias != nullptr ? acc[t * kTileOutputs + i] + view.bias[column + i] : acc[t * kTileOutputs + i];
      out[i] = view.accumulate ? out[i] + y : y;
    }
  }
}

// Format::kRun inputs at a time, Format::accumulate adds them to acc [count][16].
template <class Simd, class Format>
void product(const TileView& weights, std::size_t begin, std::size_t end, const ActivationView& rows,
             const OutputView& out) {
  alignas(64) float acc[kMaxRowsPerPass * kTileOutputs];
  const std::size_t pass = rows_per_pass(Format::row_bytes(rows.cols), Format::kRows);
  for (std::size_t first = 0; first < rows.num_rows; first += pass) {
    const RowRange range{first, smaller(pass, rows.num_rows - first)};
    for (std::size_t tile = begin; tile < end; ++tile) {
      const std::uint8_t* data = weights.data + tile * weights.tile_bytes;
      __builtin_memset(acc, 0, range.count * kTileOutputs * sizeof(float));
      for (std::size_t k = 0; k < rows.cols; k += Format::kRun) {
        Format::accumulate(data, k, smaller(Format::kRun, rows.cols - k), rows, range, acc);
      }
      write_outputs<Simd>(acc, range, tile, weights, out);
    }
  }
}

}  // namespace
}  // namespace foreword
