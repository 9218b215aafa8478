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

// Source `source` of a run, and where its row of an output lies; no source past the last output.
struct SourceRow {
  std::size_t source;
  const std::uint8_t* data;
};

SourceRow row_of(std::span<const MatrixSource> sources, std::size_t output) {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const MatrixSource& source = sources[i];
    if (output < source.rows) {
      const std::size_t row = source.row_order != nullptr ? static_cast<std::size_t>(source.row_order[output]) : output;
      return {i, source.data + row * source_row_bytes(source.format, source.cols)};
    }
    output -= source.rows;
  }
  return {sources.size(), nullptr};
}

}  // namespace

// Sources of one format behind one another become one part: fewer padded tiles, and even shares for the threads.
std::vector<SourceRun> lay_out(std::span<const MatrixSource> sources, Context& context) {
  if (sources.empty()) throw std::invalid_argument("a matrix needs at least one part");
  const std::size_t cols = sources[0].cols;
  for (const MatrixSource& source : sources) check_source(source, cols);
  std::vector<SourceRun> runs;
  for (std::size_t begin = 0; begin < sources.size();) {
    const SourceFormat format = sources[begin].format;
    std::size_t end = begin, rows = 0;
    for (; end < sources.size() && sources[end].format == format; ++end) rows += sources[end].rows;
    const std::size_t tile_bytes = packed_tile_bytes(format, cols);
    const std::size_t num_tiles = (rows + kTileOutputs - 1) / kTileOutputs, num_bytes = num_tiles * tile_bytes;
    PackedMatrix::Part part{{format, rows, cols, tile_bytes, nullptr}, num_bytes, context.weights.allocate(num_bytes)};
    part.view.data = part.storage.get();
    const auto run = sources.subspan(begin, end - begin);
    runs.push_back({{run.begin(), run.end()}, num_tiles, std::move(part)});
    begin = end;
  }
  return runs;
}

std::size_t pack_tiles(const SourceRun& run, std::size_t begin, std::size_t end) {
  const TileView& view = run.part.view;
  std::size_t not_finite = run.sources.size();
  for (std::size_t tile = begin; tile < end; ++tile) {
    std::uint8_t* const data = run.part.storage.get() + tile * view.tile_bytes;
    const std::uint8_t* rows[kTileOutputs];
    for (std::size_t i = 0; i < kTileOutputs; ++i) {
      const SourceRow row = row_of(run.sources, tile * kTileOutputs + i);
      rows[i] = row.data;
      if (row.source < not_finite && !is_finite_row(view.format, row.data, view.cols)) not_finite = row.source;
    }
    if (rows[kTileOutputs - 1] == nullptr) std::memset(data, 0, view.tile_bytes);
    pack_tile(view.format, rows, view.cols, data);
  }
  return not_finite;
}

PackedMatrix::PackedMatrix(std::span<const MatrixSource> parts, Context& context)
    : PackedMatrix([&] {
        std::vector<Part> packed;
        for (SourceRun& run : lay_out(parts, context)) {
          context.pool.run([&](std::size_t thread) {
            const auto [begin, end] = split_evenly(run.num_tiles, thread, context.pool.num_threads());
            pack_tiles(run, begin, end);
          });
          packed.push_back(std::move(run.part));
        }
        return packed;
      }()) {}

PackedMatrix::PackedMatrix(std::vector<Part> parts) : parts_(std::move(parts)), cols_(parts_[0].view.cols) {
  for (const Part& part : parts_) rows_ += part.view.rows;
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
