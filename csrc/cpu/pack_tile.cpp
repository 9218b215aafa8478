// From GGML's blocks, one row after another, to tiles of 16 rows. Values are moved, never rounded.
#include <cstring>

#include "packed_matrix.h"

namespace foreword {
namespace {

constexpr std::size_t kSteps = 8;  // of 4 inputs in a group

constexpr std::size_t kSourceQ4_0Bytes = 18, kSourceQ4_1Bytes = 20, kSourceQ8_0Bytes = 34, kSourceQ4_KBytes = 144;

// Position of 4 bytes of `output` in a step: two halves of 8 outputs, 32 bytes each.
std::size_t step_offset(std::size_t step, std::size_t output) {
  return (step * 2 + output / 8) * 32 + output % 8 * 4;
}

template <std::size_t kBytes>
void pack_wide(const std::uint8_t* const (&rows)[kTileOutputs], std::size_t cols, std::uint8_t* tile) {
  for (std::size_t output = 0; output < kTileOutputs; ++output) {
    if (rows[output] == nullptr) continue;
    for (std::size_t k = 0; k < cols; ++k) {
      std::memcpy(tile + (k * kTileOutputs + output) * kBytes, rows[output] + k * kBytes, kBytes);
    }
  }
}

// One block of 32: `num_scales` f16, then `num_steps` * 4 bytes of codes in the order of the steps.
void pack_blocks(const std::uint8_t* row, std::size_t num_groups, std::size_t block_bytes, std::size_t num_scales,
                 std::size_t num_steps, std::size_t group_bytes, std::size_t output, std::uint8_t* tile) {
  const std::size_t code_bytes = num_steps * 4 * kTileOutputs;
  for (std::size_t g = 0; g < num_groups; ++g) {
    const std::uint8_t* block = row + g * block_bytes;
    std::uint8_t* group = tile + g * group_bytes;
    for (std::size_t i = 0; i < num_scales; ++i) {
      std::memcpy(group + code_bytes + i * kHalfRow + output * 2, block + i * 2, 2);
    }
    const std::uint8_t* codes = block + num_scales * 2;
    for (std::size_t step = 0; step < num_steps; ++step) {
      std::memcpy(group + step_offset(step, output), codes + step * 4, 4);
    }
  }
}

// The 6-bit scale and minimum of group `g` out of a Q4_K block's 12 bytes.
void unpack_scale(const std::uint8_t* packed, std::size_t g, std::uint8_t& scale, std::uint8_t& minimum) {
  if (g < 4) {
    scale = packed[g] & 63U;
    minimum = packed[g + 4] & 63U;
  } else {
    scale = static_cast<std::uint8_t>((packed[g + 4] & 15U) | ((packed[g - 4] >> 6) << 4));
    minimum = static_cast<std::uint8_t>((packed[g + 4] >> 4) | ((packed[g] >> 6) << 4));
  }
}

// A Q4_K block keeps groups 2i and 2i + 1 in the low and high nibbles of 32 bytes; a tile keeps halves of one group
// there.
void pack_super_block(const std::uint8_t* block, std::size_t output, std::uint8_t* head) {
  std::memcpy(head + output * 2, block, 2);
  std::memcpy(head + kHalfRow + output * 2, block + 2, 2);
  for (std::size_t g = 0; g < kSuperGroups; ++g) {
    std::uint8_t* group = head + kQ4_KHead + g * kQ4_KBytes;
    std::uint8_t* scales = group + kNibbleBytes;
    unpack_scale(block + 4, g, scales[output], scales[kTileOutputs + output]);
    const std::uint8_t* codes = block + 16 + g / 2 * 32;
    const unsigned shift = g % 2 * 4;
    for (std::size_t i = 0; i < 16; ++i) {
      const unsigned low = (codes[i] >> shift) & 15U, high = (codes[i + 16] >> shift) & 15U;
      group[step_offset(i / 4, output) + i % 4] = static_cast<std::uint8_t>(low | (high << 4));
    }
  }
}

constexpr std::uint16_t kHalfInfinity = 0x7C00;

// The first `num_scales` of each of `num_blocks` blocks; a value is finite unless its exponent is all ones.
template <class Bits>
bool all_finite(const std::uint8_t* row, std::size_t num_blocks, std::size_t block_bytes, std::size_t num_scales,
                Bits exponent) {
  unsigned bad = 0;
  for (std::size_t block = 0; block < num_blocks; ++block) {
    for (std::size_t i = 0; i < num_scales; ++i) {
      Bits bits;
      std::memcpy(&bits, row + block * block_bytes + i * sizeof bits, sizeof bits);
      bad |= (bits & exponent) == exponent ? 1U : 0U;
    }
  }
  return bad == 0;
}

}  // namespace

std::size_t source_row_bytes(SourceFormat format, std::size_t cols) {
  const auto blocks = [cols](std::size_t size, std::size_t bytes) {
    return cols % size == 0 ? cols / size * bytes : 0;
  };
  switch (format) {
    case SourceFormat::kF32:
      return cols * 4;
    case SourceFormat::kF16:
    case SourceFormat::kBf16:
      return cols * 2;
    case SourceFormat::kQ4_0:
      return blocks(kGroup, kSourceQ4_0Bytes);
    case SourceFormat::kQ4_1:
      return blocks(kGroup, kSourceQ4_1Bytes);
    case SourceFormat::kQ4_K:
      return blocks(kGroup * kSuperGroups, kSourceQ4_KBytes);
    case SourceFormat::kQ8_0:
      return blocks(kGroup, kSourceQ8_0Bytes);
  }
  return 0;
}

bool is_finite_row(SourceFormat format, const std::uint8_t* row, std::size_t cols) {
  switch (format) {
    case SourceFormat::kF32:
      return all_finite<std::uint32_t>(row, cols, 4, 1, 0x7F800000U);
    case SourceFormat::kBf16:
      return all_finite<std::uint16_t>(row, cols, 2, 1, 0x7F80U);
    case SourceFormat::kF16:
      return all_finite<std::uint16_t>(row, cols, 2, 1, kHalfInfinity);
    case SourceFormat::kQ4_0:
      return all_finite<std::uint16_t>(row, cols / kGroup, kSourceQ4_0Bytes, 1, kHalfInfinity);
    case SourceFormat::kQ4_1:
      return all_finite<std::uint16_t>(row, cols / kGroup, kSourceQ4_1Bytes, 2, kHalfInfinity);
    case SourceFormat::kQ4_K:
      return all_finite<std::uint16_t>(row, cols / kGroup / kSuperGroups, kSourceQ4_KBytes, 2, kHalfInfinity);
    case SourceFormat::kQ8_0:
      return all_finite<std::uint16_t>(row, cols / kGroup, kSourceQ8_0Bytes, 1, kHalfInfinity);
  }
  return false;
}

std::size_t packed_tile_bytes(SourceFormat format, std::size_t cols) {
  const std::size_t groups = cols / kGroup;
  switch (format) {
    case SourceFormat::kF32:
      return cols * kTileOutputs * 4;
    case SourceFormat::kF16:
    case SourceFormat::kBf16:
      return cols * kTileOutputs * 2;
    case SourceFormat::kQ4_0:
      return groups * kQ4_0Bytes;
    case SourceFormat::kQ4_1:
      return groups * kQ4_1Bytes;
    case SourceFormat::kQ4_K:
      return groups / kSuperGroups * (kQ4_KHead + kSuperGroups * kQ4_KBytes);
    case SourceFormat::kQ8_0:
      return groups * kQ8_0Bytes;
  }
  return 0;
}

bool is_quantised(SourceFormat format) {
  return format != SourceFormat::kF32 && format != SourceFormat::kF16 && format != SourceFormat::kBf16;
}

void pack_tile(SourceFormat format, const std::uint8_t* const (&rows)[kTileOutputs], std::size_t cols,
               std::uint8_t* tile) {
  if (format == SourceFormat::kF32) return pack_wide<4>(rows, cols, tile);
  if (!is_quantised(format)) return pack_wide<2>(rows, cols, tile);
  const std::size_t groups = cols / kGroup;
  for (std::size_t output = 0; output < kTileOutputs; ++output) {
    const std::uint8_t* row = rows[output];
    if (row == nullptr) continue;
    if (format == SourceFormat::kQ4_0)
      pack_blocks(row, groups, kSourceQ4_0Bytes, 1, kSteps / 2, kQ4_0Bytes, output, tile);
    if (format == SourceFormat::kQ4_1)
      pack_blocks(row, groups, kSourceQ4_1Bytes, 2, kSteps / 2, kQ4_1Bytes, output, tile);
    if (format == SourceFormat::kQ8_0) pack_blocks(row, groups, kSourceQ8_0Bytes, 1, kSteps, kQ8_0Bytes, output, tile);
    if (format == SourceFormat::kQ4_K) {
      for (std::size_t b = 0; b < groups / kSuperGroups; ++b) {
        pack_super_block(row + b * kSourceQ4_KBytes, output, tile + b * (kQ4_KHead + kSuperGroups * kQ4_KBytes));
      }
    }
  }
}

}  // namespace foreword
