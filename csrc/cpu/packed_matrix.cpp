#include "packed_matrix.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace foreword {
namespace {

constexpr std::size_t kCacheLine = 64, kHugePage = std::size_t{2} << 20, kChunk = 8 * kHugePage;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Memory on huge pages where the system grants them: a product walks its bytes once per call, and with small pages
// every 4 KB costs a look-up and restarts the hardware's prefetching.
std::shared_ptr<std::uint8_t> allocate_huge(std::size_t num_bytes) {
  void* memory = nullptr;
  const std::size_t rounded = round_up(num_bytes, kHugePage);
  if (posix_memalign(&memory, kHugePage, rounded) != 0) throw std::bad_alloc();
#if defined(__linux__)
  madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  return {static_cast<std::uint8_t*>(memory), [](std::uint8_t* p) { std::free(p); }};
}

}  // namespace

// Matrices smaller than a huge page share chunks of several, each in the first that has room: what is left behind a
// large one is for the small ones to come. A chunk is touched only as far as it is given out, and lives as long as the
// last matrix in it.
std::shared_ptr<std::uint8_t> WeightMemory::allocate(std::size_t num_bytes) {
  const std::size_t rounded = round_up(num_bytes, kCacheLine);
  if (rounded > kChunk / 2) return allocate_huge(rounded);
  const std::lock_guard lock(mutex_);
  std::erase_if(chunks_, [](const Chunk& chunk) { return chunk.memory.expired(); });
  for (Chunk& chunk : chunks_) {
    std::shared_ptr<std::uint8_t> memory = chunk.memory.lock();
    if (memory != nullptr && chunk.used + rounded <= kChunk) return place(chunk, std::move(memory), rounded);
  }
  std::shared_ptr<std::uint8_t> memory = allocate_huge(kChunk);
  chunks_.push_back({memory, 0});
  return place(chunks_.back(), std::move(memory), rounded);
}

std::shared_ptr<std::uint8_t> WeightMemory::place(Chunk& chunk, std::shared_ptr<std::uint8_t> memory,
                                                  std::size_t num_bytes) {
  std::uint8_t* const first = memory.get() + chunk.used;
  chunk.used += num_bytes;
  return {std::move(memory), first};
}

namespace {

void check_source(const MatrixSource& source, std::size_t cols) {
  if (source.rows == 0 || source.cols == 0) throw std::invalid_argument("a matrix part has no rows or no columns");
  if (source.cols != cols) throw std::invalid_argument("the parts of a matrix have different numbers of columns");
  if (source_row_bytes(source.format, cols) == 0) {
    throw std::invalid_argument(std::to_string(cols) + " columns are no whole number of the format's blocks");
  }
  if (source.row_order == nullptr) return;
  for (std::size_t i = 0; i < source.rows; ++i) {
    const std::int32_t row = source.row_order[i];
    if (row < 0 || static_cast<std::size_t>(row) >= source.rows) {
      throw std::invalid_argument("row_order[" + std::to_string(i) + "] = " + std::to_string(row) + " is no row of " +
                                  std::to_string(source.rows));
    }
  }
}

const std::uint8_t* row_of(std::span<const MatrixSource> run, std::size_t output) {
  for (const MatrixSource& source : run) {
    if (output < source.rows) {
      const std::size_t row = source.row_order != nullptr ? static_cast<std::size_t>(source.row_order[output]) : output;
      return source.data + row * source_row_bytes(source.format, source.cols);
    }
    output -= source.rows;
  }
  return nullptr;
}

// Sources of one format behind one another become one part: fewer padded tiles, and even shares for the threads.
PackedMatrix::Part pack_part(std::span<const MatrixSource> run, Context& context) {
  std::size_t rows = 0;
  for (const MatrixSource& source : run) rows += source.rows;
  const SourceFormat format = run[0].format;
  const std::size_t cols = run[0].cols, tile_bytes = packed_tile_bytes(format, cols);
  const std::size_t num_tiles = (rows + kTileOutputs - 1) / kTileOutputs;
  PackedMatrix::Part part{{format, rows, cols, tile_bytes, nullptr},
                          num_tiles * tile_bytes,
                          context.weights.allocate(num_tiles * tile_bytes)};
  std::uint8_t* data = part.storage.get();
  part.view.data = data;
  context.pool.run([&](std::size_t thread) {
    const auto [begin, end] = split_evenly(num_tiles, thread, context.pool.num_threads());
    std::memset(data + begin * tile_bytes, 0, (end - begin) * tile_bytes);
    for (std::size_t tile = begin; tile < end; ++tile) {
      const std::uint8_t* source_rows[kTileOutputs];
      for (std::size_t i = 0; i < kTileOutputs; ++i) source_rows[i] = row_of(run, tile * kTileOutputs + i);
      pack_tile(format, source_rows, cols, data + tile * tile_bytes);
    }
  });
  return part;
}

}  // namespace

PackedMatrix::PackedMatrix(std::span<const MatrixSource> parts, Context& context) {
  if (parts.empty()) throw std::invalid_argument("a matrix needs at least one part");
  cols_ = parts[0].cols;
  for (const MatrixSource& source : parts) check_source(source, cols_);
  for (std::size_t begin = 0; begin < parts.size();) {
    std::size_t end = begin + 1;
    while (end < parts.size() && parts[end].format == parts[begin].format) ++end;
    parts_.push_back(pack_part(parts.subspan(begin, end - begin), context));
    rows_ += parts_.back().view.rows;
    begin = end;
  }
}

PackedMatrix::~PackedMatrix() = default;
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;

std::size_t PackedMatrix::rows() const {
  return rows_;
}
std::size_t PackedMatrix::cols() const {
  return cols_;
}
std::span<const PackedMatrix::Part> PackedMatrix::parts() const {
  return parts_;
}

std::size_t PackedMatrix::num_bytes() const {
  std::size_t total = 0;
  for (const Part& part : parts_) total += part.num_bytes;
  return total;
}

}  // namespace foreword
