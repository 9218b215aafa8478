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

// Weights of a few rows come from memory, each once: asks for those this far ahead, also over the ends of pages and
// tiles, where the hardware's prefetching stops. Beyond the last it asks for nothing that could fault.
constexpr std::size_t kAhead = 1024;

template <std::size_t kBytes>
inline void prefetch(const std::uint8_t* begin) {
#pragma GCC unroll 16
  for (std::size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(begin + line);
}

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

// Pairs of tiles, in turn Format::kPairRun inputs of each.
template <class Simd, class Format>
void pair_product(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out) {
  static_assert(kPairRows <= Format::kRows);
  alignas(64) float acc[2][kPairRows * kTileOutputs];
  const RowRange range{0, rows.num_rows};
  for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const std::size_t num_tiles = (tile + tiles.apart) * kTileOutputs < weights.rows ? 2 : 1;
    __builtin_memset(acc, 0, sizeof acc);
    for (std::size_t k = 0; k < rows.cols; k += Format::kPairRun) {
      for (std::size_t i = 0; i < num_tiles; ++i) {
        Format::accumulate(weights.data + (tile + i * tiles.apart) * weights.tile_bytes, k,
                           smaller(Format::kPairRun, rows.cols - k), rows, range, acc[i]);
      }
    }
    for (std::size_t i = 0; i < num_tiles; ++i) {
      write_outputs<Simd>(acc[i], range, tile + i * tiles.apart, weights, out);
    }
  }
}

// Format::kRun inputs at a time, Format::accumulate adds them to acc [count][16].
template <class Simd, class Format>
void product(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out) {
  if (tiles.apart > 0) return pair_product<Simd, Format>(weights, tiles, rows, out);
  alignas(64) float acc[kMaxRowsPerPass * kTileOutputs];
  const std::size_t pass = rows_per_pass(Format::row_bytes(rows.cols), Format::kRows);
  for (std::size_t first = 0; first < rows.num_rows; first += pass) {
    const RowRange range{first, smaller(pass, rows.num_rows - first)};
    for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
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
