// Single groups of weights out of a packed tile, for code that is not in a hurry: embedding and the scalar kernels.
#pragma once

#include <bit>
#include <cstring>

#include "half.h"
#include "packed_matrix.h"

namespace foreword {
namespace {

inline float half_at(const std::uint8_t* p) {
  std::uint16_t half;
  std::memcpy(&half, p, sizeof half);
  return half_to_float(half);
}

// Element k of output `lane` of an F32, F16 or BF16 tile.
inline float wide_value(SourceFormat format, const std::uint8_t* tile, std::size_t k, std::size_t lane) {
  const std::size_t index = k * kTileOutputs + lane;
  if (format == SourceFormat::kF32) {
    float value;
    std::memcpy(&value, tile + index * 4, sizeof value);
    return value;
  }
  if (format == SourceFormat::kF16) return half_at(tile + index * 2);
  std::uint16_t high;
  std::memcpy(&high, tile + index * 2, sizeof high);
  return std::bit_cast<float>(static_cast<std::uint32_t>(high) << 16);
}

// Group g of output `lane` of a quantised tile: w[k] = scale * codes[k] + minimum.
struct GroupValues {
  std::int32_t codes[kGroup];
  float scale, minimum;
};

inline GroupValues group_values(SourceFormat format, const std::uint8_t* tile, std::size_t g, std::size_t lane) {
  const std::size_t super_bytes = kQ4_KHead + kSuperGroups * kQ4_KBytes;
  const std::uint8_t* head = tile + g / kSuperGroups * super_bytes;
  const std::uint8_t* group = format == SourceFormat::kQ8_0   ? tile + g * kQ8_0Bytes
                              : format == SourceFormat::kQ4_1 ? tile + g * kQ4_1Bytes
                              : format == SourceFormat::kQ4_0 ? tile + g * kQ4_0Bytes
                                                              : head + kQ4_KHead + g % kSuperGroups * kQ4_KBytes;
  GroupValues values;
  for (std::size_t k = 0; k < kGroup; ++k) {
    const bool wide = format == SourceFormat::kQ8_0;
    const std::size_t step = wide ? k / 4 : k % 16 / 4;
    const std::uint8_t byte = group[(step * 2 + lane / 8) * 32 + lane % 8 * 4 + k % 4];
    values.codes[k] = wide ? static_cast<std::int8_t>(byte) : (k < 16 ? byte & 15 : byte >> 4);
  }
  if (format == SourceFormat::kQ8_0) {
    values.scale = half_at(group + 2 * kNibbleBytes + lane * 2);
    values.minimum = 0;
  } else if (format == SourceFormat::kQ4_K) {
    const std::uint8_t* bits = group + kNibbleBytes;
    values.scale = half_at(head + lane * 2) * static_cast<float>(bits[lane]);
    values.minimum = -(half_at(head + kHalfRow + lane * 2) * static_cast<float>(bits[kTileOutputs + lane]));
  } else {
    values.scale = half_at(group + kNibbleBytes + lane * 2);
    values.minimum =
        format == SourceFormat::kQ4_1 ? half_at(group + kNibbleBytes + kHalfRow + lane * 2) : -8.0f * values.scale;
  }
  return values;
}

}  // namespace
}  // namespace foreword
