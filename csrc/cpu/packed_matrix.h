// How packed weights lie in memory. Outputs are cut into tiles of 16; each tile is one run of bytes that a product
// reads once, front to back. Outputs past the last one are zero.
//
//   F32, F16, BF16   for each k: 16 values
//   Q8_0   for each group of 32 k: codes [8 steps][2 halves][8 outputs][4 k] int8, scale [16] f16
//   Q4_1   for each group: nibbles [4 steps][2 halves][8 outputs][4 k], scale [16] f16, minimum [16] f16
//   Q4_0   the same without the minimum, which is -8 * scale
//   Q4_K   for each 8 groups: d [16] f16, dmin [16] f16, then for each group: nibbles, scale [16] u8, minimum [16] u8
//
// Step j holds k = 4j .. 4j + 3 of the group. The low nibbles of step j are those of k = 4j .., the high ones of k = 16
// + 4j .., as in GGML's blocks. One half of a step, 32 bytes, is one operand of a multiply-add of 8 outputs by 4
// inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "foreword/matrix.h"

namespace foreword {

inline constexpr std::size_t kTileOutputs = 16;
inline constexpr std::size_t kGroup = 32;       // inputs that share a scale, of weights and of rounded activations
inline constexpr std::size_t kSuperGroups = 8;  // groups of a Q4_K block
inline constexpr std::size_t kNibbleBytes = kTileOutputs * kGroup / 2;
inline constexpr std::size_t kHalfRow = kTileOutputs * sizeof(std::uint16_t);  // 16 f16 scales
inline constexpr std::size_t kQ4_1Bytes = kNibbleBytes + 2 * kHalfRow;         // of one group
inline constexpr std::size_t kQ4_0Bytes = kNibbleBytes + kHalfRow;
inline constexpr std::size_t kQ4_KBytes = kNibbleBytes + 2 * kTileOutputs;
inline constexpr std::size_t kQ4_KHead = 2 * kHalfRow;
inline constexpr std::size_t kQ8_0Bytes = 2 * kNibbleBytes + kHalfRow;

// What kernels see of a part: plain data, so that files compiled for other instruction sets share no inline functions.
struct TileView {
  SourceFormat format;
  std::size_t rows, cols;  // outputs N, inputs K
  std::size_t tile_bytes;
  const std::uint8_t* data;
};

// Consecutive sources of one format, packed as one run of outputs.
struct PackedMatrix::Part {
  TileView view;
  std::size_t num_bytes;
  std::shared_ptr<std::uint8_t> storage;
};

// Such sources, and the room for them: none of it packed yet.
struct SourceRun {
  std::vector<MatrixSource> sources;
  std::size_t num_tiles;
  PackedMatrix::Part part;
};

// A matrix's runs; throws std::invalid_argument where its sources are none of one matrix.
std::vector<SourceRun> lay_out(std::span<const MatrixSource> sources, Context& context);

// Packs tiles [begin, end); returns the first source of which a row among them holds an infinite value or a NaN, and
// the number of sources where none does. Other threads may pack other tiles.
std::size_t pack_tiles(const SourceRun& run, std::size_t begin, std::size_t end);

std::size_t packed_tile_bytes(SourceFormat format, std::size_t cols);
bool is_quantised(SourceFormat format);

// Whether all values of a source's row are finite, as far as scales say it: codes always are.
bool is_finite_row(SourceFormat format, const std::uint8_t* row, std::size_t cols);

// Packs one tile: rows[i] is the source row of output i, null past the last output. A tile with such rows starts as
// zeros.
void pack_tile(SourceFormat format, const std::uint8_t* const (&rows)[kTileOutputs], std::size_t cols,
               std::uint8_t* tile);

}  // namespace foreword
