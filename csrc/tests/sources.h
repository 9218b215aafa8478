// Random weights in GGML's formats, and their values by the formats' definition, for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "foreword/matrix.h"
#include "half.h"

namespace foreword::test {

inline constexpr SourceFormat kAllFormats[] = {SourceFormat::kF32,  SourceFormat::kF16,  SourceFormat::kBf16,
                                               SourceFormat::kQ4_0, SourceFormat::kQ4_1, SourceFormat::kQ4_K,
                                               SourceFormat::kQ8_0};

inline bool rounds_activations(SourceFormat format) {
  return format != SourceFormat::kF32 && format != SourceFormat::kF16 && format != SourceFormat::kBf16;
}

inline std::vector<float> random_floats(std::size_t n, std::mt19937& random, float size = 1.0f) {
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// A weight of `rows` by `cols` as in a file, one byte off any alignment.
struct RandomSource {
  SourceFormat format;
  std::size_t rows, cols;
  std::vector<std::uint8_t> bytes;  // the first is padding
  const std::uint8_t* data() const { return bytes.data() + 1; }
  MatrixSource source(const std::int32_t* row_order = nullptr) const { return {format, rows, cols, data(), row_order}; }
};

inline std::size_t block_size(SourceFormat format) {
  return format == SourceFormat::kQ4_K ? 256 : rounds_activations(format) ? 32 : 1;
}

// Bytes of a block that are f16 scales rather than codes.
inline std::size_t num_block_scales(SourceFormat format) {
  return format == SourceFormat::kQ4_1 || format == SourceFormat::kQ4_K ? 2 : 1;
}

inline RandomSource random_source(SourceFormat format, std::size_t rows, std::size_t cols, std::mt19937& random) {
  RandomSource source{format, rows, cols, std::vector<std::uint8_t>(1 + rows * source_row_bytes(format, cols))};
  std::uint8_t* data = source.bytes.data() + 1;
  std::uniform_real_distribution<float> scale(-0.02f, 0.02f);
  if (!rounds_activations(format)) {
    for (std::size_t i = 0; i < rows * cols; ++i) {
      const float value = scale(random);
      const std::uint16_t half = float_to_half(value);
      std::uint32_t bits;
      std::memcpy(&bits, &value, 4);
      const std::uint16_t high = static_cast<std::uint16_t>(bits >> 16);
      if (format == SourceFormat::kF32) std::memcpy(data + i * 4, &value, 4);
      if (format == SourceFormat::kF16) std::memcpy(data + i * 2, &half, 2);
      if (format == SourceFormat::kBf16) std::memcpy(data + i * 2, &high, 2);
    }
    return source;
  }
  for (std::size_t i = 1; i < source.bytes.size(); ++i) source.bytes[i] = static_cast<std::uint8_t>(random());
  const std::size_t block_bytes = source_row_bytes(format, block_size(format));
  for (std::size_t offset = 0; offset + 1 < source.bytes.size(); offset += block_bytes) {
    for (std::size_t i = 0; i < num_block_scales(format); ++i) {
      const std::uint16_t half = float_to_half(scale(random));
      std::memcpy(data + offset + i * 2, &half, 2);
    }
  }
  return source;
}

inline float half_value(const std::uint8_t* p) {
  std::uint16_t half;
  std::memcpy(&half, p, 2);
  return half_to_float(half);
}

// A weight as scale * code + minimum; for wide formats the code is 1.
struct WeightParts {
  double scale, code, minimum;
};

// Element k of a Q4_K block.
inline WeightParts q4_k_parts(const std::uint8_t* block, std::size_t k) {
  const std::uint8_t* packed = block + 4;
  const std::size_t g = k / 32;
  unsigned scale, minimum;
  if (g < 4) {
    scale = packed[g] & 63U;
    minimum = packed[g + 4] & 63U;
  } else {
    scale = (packed[g + 4] & 15U) | ((packed[g - 4] >> 6U) << 4U);
    minimum = (packed[g + 4] >> 4U) | ((packed[g] >> 6U) << 4U);
  }
  const unsigned byte = block[16 + k / 64 * 32 + k % 32], code = k / 32 % 2 == 0 ? byte & 15U : byte >> 4U;
  const double d = static_cast<double>(half_value(block)), dmin = static_cast<double>(half_value(block + 2));
  return {d * scale, static_cast<double>(code), -dmin * minimum};
}

inline WeightParts weight_parts(const RandomSource& source, std::size_t row, std::size_t k) {
  const std::uint8_t* data = source.data() + row * source_row_bytes(source.format, source.cols);
  if (source.format == SourceFormat::kF32) {
    float value;
    std::memcpy(&value, data + k * 4, 4);
    return {static_cast<double>(value), 1, 0};
  }
  if (source.format == SourceFormat::kF16) return {static_cast<double>(half_value(data + k * 2)), 1, 0};
  if (source.format == SourceFormat::kBf16) {
    const std::uint32_t bits = static_cast<std::uint32_t>(data[k * 2] | (data[k * 2 + 1] << 8)) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return {static_cast<double>(value), 1, 0};
  }
  if (source.format == SourceFormat::kQ4_K) return q4_k_parts(data + k / 256 * 144, k % 256);
  const std::size_t i = k % 32;
  const std::uint8_t* block = data + k / 32 * source_row_bytes(source.format, 32);
  const double d = static_cast<double>(half_value(block));
  if (source.format == SourceFormat::kQ8_0) return {d, static_cast<double>(static_cast<std::int8_t>(block[2 + i])), 0};
  const std::uint8_t* codes = block + (source.format == SourceFormat::kQ4_1 ? 4 : 2);
  const double code = i < 16 ? codes[i] & 15 : codes[i - 16] >> 4;
  return {d, code, source.format == SourceFormat::kQ4_0 ? -8 * d : static_cast<double>(half_value(block + 2))};
}

inline double weight_value(const RandomSource& source, std::size_t row, std::size_t k) {
  const WeightParts parts = weight_parts(source, row, k);
  return parts.scale * parts.code + parts.minimum;
}

// Size of what a product adds for this weight: code and minimum are added apart.
inline double weight_size(const RandomSource& source, std::size_t row, std::size_t k) {
  const WeightParts parts = weight_parts(source, row, k);
  return std::fabs(parts.scale * parts.code) + std::fabs(parts.minimum);
}

// A row as the product sees it: rounded to int8 per group of 32 where the weights are quantised.
inline std::vector<double> seen_row(const float* x, std::size_t cols, bool rounds) {
  std::vector<double> seen(x, x + cols);
  if (!rounds) return seen;
  for (std::size_t g = 0; g < cols; g += 32) {
    float largest = 0;
    for (std::size_t k = g; k < g + 32; ++k) largest = std::fmax(largest, std::fabs(x[k]));
    const float inverse = 127.0f / largest, scale = largest / 127.0f;
    for (std::size_t k = g; k < g + 32; ++k) {
      seen[k] = largest == 0 ? 0.0 : static_cast<double>(scale) * std::nearbyint(static_cast<double>(x[k] * inverse));
    }
  }
  return seen;
}

}  // namespace foreword::test
