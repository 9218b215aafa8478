// F32, F16 and BF16 weights times f32 activations: 16 outputs by up to 6 rows in registers, one chain of fused
// multiply-adds for each output over a run of 64 inputs. Written once for every instruction set; `Simd` is one of
// simd_products_*.h. Included from the one .cpp of an instruction set.
#pragma once

#include "tile_product.h"

namespace foreword {
namespace {

template <class Simd>
struct F32 {
  static constexpr std::size_t kBytes = 4;
  static typename Simd::Float load(const std::uint8_t* p) { return Simd::load_floats(p); }
};

template <class Simd>
struct F16 {
  static constexpr std::size_t kBytes = 2;
  static typename Simd::Float load(const std::uint8_t* p) { return Simd::load_halves(p); }
};

template <class Simd>
struct Bf16 {
  static constexpr std::size_t kBytes = 2;
  static typename Simd::Float load(const std::uint8_t* p) { return Simd::load_bf16(p); }
};

// Adds the sum over n inputs of M rows to acc [M][16]; `ahead`: the weights come from memory.
template <class Simd, std::size_t M, class Value>
void add_run(const std::uint8_t* weights, bool ahead, const float* x, std::size_t n, float* acc) {
  typename Simd::Float sum[M][2];
  for (std::size_t r = 0; r < M; ++r) sum[r][0] = sum[r][1] = Simd::set(0.0f);
  for (std::size_t k = 0; k < n; ++k, weights += kTileOutputs * Value::kBytes, x += M) {
    if (ahead) prefetch<kTileOutputs * Value::kBytes>(weights + kAhead);
    const auto low = Value::load(weights), high = Value::load(weights + Simd::kLanes * Value::kBytes);
#pragma GCC unroll 6
    for (std::size_t r = 0; r < M; ++r) {
      const auto value = Simd::set(x[r]);
      sum[r][0] = Simd::multiply_add(low, value, sum[r][0]);
      sum[r][1] = Simd::multiply_add(high, value, sum[r][1]);
    }
  }
  for (std::size_t r = 0; r < M; ++r) {
    float* total = acc + r * kTileOutputs;
    Simd::store(total, Simd::load(total) + sum[r][0]);
    Simd::store(total + Simd::kLanes, Simd::load(total + Simd::kLanes) + sum[r][1]);
  }
}

template <class Simd, class Value>
void add_blocks(const std::uint8_t* weights, bool in_memory, std::size_t k, std::size_t n, const ActivationView& rows,
                RowRange range, float* acc) {
  for (std::size_t done = 0; done < range.count; done += kFloatRows) {
    const std::size_t m = smaller(kFloatRows, range.count - done);
    const float* x = float_block(rows, range.first + done) + k * m;
    float* sums = acc + done * kTileOutputs;
    const bool ahead = in_memory && done == 0;
    switch (m) {
      case 6:
        add_run<Simd, 6, Value>(weights, ahead, x, n, sums);
        break;
      case 5:
        add_run<Simd, 5, Value>(weights, ahead, x, n, sums);
        break;
      case 4:
        add_run<Simd, 4, Value>(weights, ahead, x, n, sums);
        break;
      case 3:
        add_run<Simd, 3, Value>(weights, ahead, x, n, sums);
        break;
      case 2:
        add_run<Simd, 2, Value>(weights, ahead, x, n, sums);
        break;
      default:
        add_run<Simd, 1, Value>(weights, ahead, x, n, sums);
        break;
    }
  }
}

template <class Simd, class Value>
struct FloatFormat {
  static constexpr std::size_t kRows = kFloatRows;
  static constexpr std::size_t kRun = kFloatRun, kPairRun = kFloatRun;
  static std::size_t row_bytes(std::size_t cols) { return cols * sizeof(float); }

  static void accumulate(const std::uint8_t* tile, std::size_t k, std::size_t n, const ActivationView& rows,
                         RowRange range, float* acc) {
    const std::uint8_t* weights = tile + k * kTileOutputs * Value::kBytes;
    if (Value::kBytes == 4 || range.count <= kFloatRows)
      return add_blocks<Simd, Value>(weights, true, k, n, rows, range, acc);
    alignas(64) float wide[kFloatRun * kTileOutputs];  // converted once for several blocks of rows
    for (std::size_t i = 0; i < n * kTileOutputs; i += Simd::kLanes) {
      Simd::store(wide + i, Value::load(weights + i * Value::kBytes));
    }
    add_blocks<Simd, F32<Simd>>(reinterpret_cast<const std::uint8_t*>(wide), false, k, n, rows, range, acc);
  }
};

template <class Simd>
void float_product(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out) {
  if (weights.format == SourceFormat::kF32) {
    product<Simd, FloatFormat<Simd, F32<Simd>>>(weights, tiles, rows, out);
  } else if (weights.format == SourceFormat::kF16) {
    product<Simd, FloatFormat<Simd, F16<Simd>>>(weights, tiles, rows, out);
  } else {
    product<Simd, FloatFormat<Simd, Bf16<Simd>>>(weights, tiles, rows, out);
  }
}

}  // namespace
}  // namespace foreword
