// F32, F16 and BF16 weights times f32 activations: 16 outputs by up to 6 rows in registers, one chain of fused
// multiply-adds for each output over a run of 64 inputs.
#include "tile_product_avx2.h"

namespace foreword::avx2 {
namespace {

struct F32 {
  static constexpr std::size_t kBytes = 4;
  static __m256 load(const std::uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
};

struct F16 {
  static constexpr std::size_t kBytes = 2;
  static __m256 load(const std::uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
};

struct Bf16 {
  static constexpr std::size_t kBytes = 2;
  static __m256 load(const std::uint8_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
};

// Adds the sum over n inputs of M rows to acc [M][16].
template <std::size_t M, class Value>
void add_run(const std::uint8_t* weights, const float* x, std::size_t n, float* acc) {
  __m256 sum[M][2];
  for (std::size_t r = 0; r < M; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
  for (std::size_t k = 0; k < n; ++k, weights += kTileOutputs * Value::kBytes, x += M) {
    const __m256 low = Value::load(weights), high = Value::load(weights + kLanes * Value::kBytes);
#pragma GCC unroll 6
    for (std::size_t r = 0; r < M; ++r) {
      const __m256 value = _mm256_broadcast_ss(x + r);
      sum[r][0] = _mm256_fmadd_ps(low, value, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(high, value, sum[r][1]);
    }
  }
  for (std::size_t r = 0; r < M; ++r) {
    float* total = acc + r * kTileOutputs;
    _mm256_store_ps(total, _mm256_add_ps(_mm256_load_ps(total), sum[r][0]));
    _mm256_store_ps(total + kLanes, _mm256_add_ps(_mm256_load_ps(total + kLanes), sum[r][1]));
  }
}

template <class Value>
void add_blocks(const std::uint8_t* weights, std::size_t k, std::size_t n, const ActivationView& rows, RowRange range,
                float* acc) {
  for (std::size_t done = 0; done < range.count; done += kFloatRows) {
    const std::size_t m = smaller(kFloatRows, range.count - done);
    const float* x = float_block(rows, range.first + done) + k * m;
    float* sums = acc + done * kTileOutputs;
    switch (m) {
      case 6:
        add_run<6, Value>(weights, x, n, sums);
        break;
      case 5:
        add_run<5, Value>(weights, x, n, sums);
        break;
      case 4:
        add_run<4, Value>(weights, x, n, sums);
        break;
      case 3:
        add_run<3, Value>(weights, x, n, sums);
        break;
      case 2:
        add_run<2, Value>(weights, x, n, sums);
        break;
      default:
        add_run<1, Value>(weights, x, n, sums);
        break;
    }
  }
}

template <class Value>
struct FloatFormat {
  static constexpr std::size_t kRows = kFloatRows;
  static constexpr std::size_t kRun = kFloatRun;
  static std::size_t row_bytes(std::size_t cols) { return cols * sizeof(float); }

  static void accumulate(const std::uint8_t* tile, std::size_t k, std::size_t n, const ActivationView& rows,
                         RowRange range, float* acc) {
    const std::uint8_t* weights = tile + k * kTileOutputs * Value::kBytes;
    if (Value::kBytes == 4 || range.count <= kFloatRows) return add_blocks<Value>(weights, k, n, rows, range, acc);
    alignas(64) float wide[kFloatRun * kTileOutputs];  // converted once for several blocks of rows
    for (std::size_t i = 0; i < n * kTileOutputs; i += kLanes) {
      _mm256_store_ps(wide + i, Value::load(weights + i * Value::kBytes));
    }
    add_blocks<F32>(reinterpret_cast<const std::uint8_t*>(wide), k, n, rows, range, acc);
  }
};

}  // namespace

void product_float(const TileView& weights, std::size_t begin, std::size_t end, const ActivationView& rows,
                   const OutputView& out) {
  if (weights.format == SourceFormat::kF32) return product<FloatFormat<F32>>(weights, begin, end, rows, out);
  if (weights.format == SourceFormat::kF16) return product<FloatFormat<F16>>(weights, begin, end, rows, out);
  product<FloatFormat<Bf16>>(weights, begin, end, rows, out);
}

}  // namespace foreword::avx2
