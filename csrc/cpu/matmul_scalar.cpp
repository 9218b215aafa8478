// The products in plain C++, one tile and one row at a time. 4 and 8 bits give the same bits as matmul_int8_kernel.h.
#include "matmul_scalar.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "packed_value.h"

namespace foreword {
namespace scalar {
namespace {

float float_at(const std::uint8_t* p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

void write_output(const TileView& weights, std::size_t tile, std::size_t t, const float* acc, const OutputView& view) {
  const std::size_t column = tile * kTileOutputs;
  float* out = view.out + t * view.stride + column;
  for (std::size_t i = 0; i < std::min(kTileOutputs, weights.rows - column); ++i) {
    const float y = view.bias != nullptr ? acc[i] + view.bias[column + i] : acc[i];
    out[i] = view.accumulate ? out[i] + y : y;
  }
}

template <class Body>
void for_tiles(const TileView& weights, TileRange tiles, Body body) {
  for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
    body(tile);
    if (tiles.apart > 0 && (tile + tiles.apart) * kTileOutputs < weights.rows) body(tile + tiles.apart);
  }
}

// One group of a tile, outputs last, so that the inner loop runs over neighbours.
struct TileGroup {
  std::int32_t codes[kGroup][kTileOutputs];
  float scale[kTileOutputs], minimum[kTileOutputs];
};

void load_group(SourceFormat format, const std::uint8_t* tile, std::size_t g, TileGroup& group) {
  for (std::size_t lane = 0; lane < kTileOutputs; ++lane) {
    const GroupValues values = group_values(format, tile, g, lane);
    for (std::size_t k = 0; k < kGroup; ++k) group.codes[k][lane] = values.codes[k];
    group.scale[lane] = values.scale;
    group.minimum[lane] = values.minimum;
  }
}

void add_group(const TileGroup& group, bool has_minimum, const std::uint8_t* record, std::size_t m, std::size_t row,
               float* acc) {
  std::int32_t sums[kTileOutputs] = {};
  for (std::size_t k = 0; k < kGroup; ++k) {
    const std::int32_t x = static_cast<std::int8_t>(record[row * kGroup + k]);
    for (std::size_t i = 0; i < kTileOutputs; ++i) sums[i] += group.codes[k][i] * x;
  }
  const float scale = float_at(record + m * kGroup + row * 4),
              scaled_sum = float_at(record + m * (kGroup + 4) + row * 4);
  for (std::size_t i = 0; i < kTileOutputs; ++i) {
    acc[i] = std::fma(static_cast<float>(sums[i]), group.scale[i] * scale, acc[i]);
    if (has_minimum) acc[i] = std::fma(group.minimum[i], scaled_sum, acc[i]);
  }
}

}  // namespace

void product_int8(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out) {
  const bool has_minimum = weights.format != SourceFormat::kQ8_0;
  float acc[kMaxRowsPerPass][kTileOutputs];
  TileGroup group;
  for (std::size_t first = 0; first < rows.num_rows; first += kMaxRowsPerPass) {
    const std::size_t count = std::min(kMaxRowsPerPass, rows.num_rows - first);
    for_tiles(weights, tiles, [&](std::size_t tile) {
      std::memset(acc, 0, sizeof acc);
      for (std::size_t g = 0; g < rows.cols / kGroup; ++g) {
        load_group(weights.format, weights.data + tile * weights.tile_bytes, g, group);
        for (std::size_t t = 0; t < count; ++t) {
          const std::size_t block = (first + t) / kInt8Rows * kInt8Rows,
                            m = block_rows(rows.num_rows, block, kInt8Rows);
          add_group(group, has_minimum, int8_block(rows, block) + g * m * kInt8RecordBytes, m, first + t - block,
                    acc[t]);
        }
      }
      for (std::size_t t = 0; t < count; ++t) write_output(weights, tile, first + t, acc[t], out);
    });
  }
}

void product_float(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out) {
  float values[kFloatRun][kTileOutputs];
  float acc[kMaxRowsPerPass][kTileOutputs];
  for (std::size_t first = 0; first < rows.num_rows; first += kMaxRowsPerPass) {
    const std::size_t count = std::min(kMaxRowsPerPass, rows.num_rows - first);
    for_tiles(weights, tiles, [&](std::size_t tile) {
      const std::uint8_t* data = weights.data + tile * weights.tile_bytes;
      std::memset(acc, 0, sizeof acc);
      for (std::size_t k0 = 0; k0 < rows.cols; k0 += kFloatRun) {
        const std::size_t n = std::min(kFloatRun, rows.cols - k0);
        for (std::size_t k = 0; k < n; ++k) {
          for (std::size_t i = 0; i < kTileOutputs; ++i) values[k][i] = wide_value(weights.format, data, k0 + k, i);
        }
        for (std::size_t t = 0; t < count; ++t) {
          const std::size_t block = (first + t) / kFloatRows * kFloatRows,
                            m = block_rows(rows.num_rows, block, kFloatRows);
          const float* x = float_block(rows, block) + k0 * m + (first + t - block);
          float sum[kTileOutputs] = {};
          for (std::size_t k = 0; k < n; ++k) {
            for (std::size_t i = 0; i < kTileOutputs; ++i) sum[i] += values[k][i] * x[k * m];
          }
          for (std::size_t i = 0; i < kTileOutputs; ++i) acc[t][i] += sum[i];
        }
      }
      for (std::size_t t = 0; t < count; ++t) write_output(weights, tile, first + t, acc[t], out);
    });
  }
}

}  // namespace scalar

const MatmulKernels kScalarMatmul = {scalar::sum_of_squares, scalar::scale_row,    scalar::swiglu,
                                     scalar::quantise,       scalar::product_int8, scalar::product_float};

}  // namespace foreword
