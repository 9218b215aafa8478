#include "foreword/packing.h"

#include <algorithm>
#include <limits>
#include <system_error>
#include <utility>

#include "packed_matrix.h"

namespace foreword {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{256} << 10;  // some 100 us

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

}  // namespace

// One part of one matrix.
struct Packing::Run {
  SourceRun sources;
  std::size_t first_source;  // of all matrices' sources
  std::size_t piece;         // tiles
  std::size_t matrix;
};

Packing::Packing(std::span<const std::vector<MatrixSource>> matrices, Context& context)
    : context_(context), not_finite_(kNone) {
  std::size_t num_sources = 0, num_pieces = 0;
  for (std::size_t matrix = 0; matrix < matrices.size(); ++matrix) {
    first_source_.push_back(num_sources);
    for (SourceRun& run : lay_out(matrices[matrix], context)) {
      const std::size_t piece = std::max<std::size_t>(1, kPieceBytes / run.part.view.tile_bytes);
      num_pieces += (run.num_tiles + piece - 1) / piece;
      ends_.push_back(num_pieces);
      const std::size_t size = run.sources.size();
      runs_.push_back({std::move(run), num_sources, piece, matrix});
      num_sources += size;
    }
  }
  try {
    thread_ = std::thread([this] { work(kNone); });
  } catch (const std::system_error&) {  // no more threads are granted: the pool does all when it is asked
  }
}

Packing::~Packing() {
  next_ = kNone / 2;
  if (thread_.joinable()) thread_.join();
}

void Packing::work(std::size_t max_pieces) {
  for (std::size_t done = 0; done < max_pieces; ++done) {
    const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    const auto found = std::upper_bound(ends_.begin(), ends_.end(), index);
    if (found == ends_.end()) return;
    const std::size_t position = static_cast<std::size_t>(found - ends_.begin());
    const Run& run = runs_[position];
    const std::size_t begin = (index - (position == 0 ? 0 : ends_[position - 1])) * run.piece;
    const std::size_t source = pack_tiles(run.sources, begin, std::min(begin + run.piece, run.sources.num_tiles));
    if (source == run.sources.sources.size()) continue;
    std::size_t first = not_finite_;
    while (run.first_source + source < first && !not_finite_.compare_exchange_weak(first, run.first_source + source)) {
    }
  }
}

bool Packing::help(std::size_t max_pieces) {
  context_.pool.run([&](std::size_t) { work(max_pieces); });
  return ends_.empty() || next_ >= ends_.back();
}

std::vector<PackedMatrix> Packing::finish() {
  help(kNone);
  if (thread_.joinable()) thread_.join();
  std::vector<PackedMatrix> packed;
  for (std::size_t begin = 0; begin < runs_.size();) {
    std::vector<PackedMatrix::Part> parts;
    const std::size_t matrix = runs_[begin].matrix;
    for (; begin < runs_.size() && runs_[begin].matrix == matrix; ++begin) {
      parts.push_back(std::move(runs_[begin].sources.part));
    }
    packed.push_back(PackedMatrix(std::move(parts)));
  }
  runs_.clear();
  ends_.clear();
  return packed;
}

std::optional<Packing::Place> Packing::not_finite() const {
  const std::size_t source = not_finite_;
  if (source == kNone) return std::nullopt;
  const auto behind = std::upper_bound(first_source_.begin(), first_source_.end(), source);
  const std::size_t matrix = static_cast<std::size_t>(behind - first_source_.begin()) - 1;
  return Place{matrix, source - first_source_[matrix]};
}

}  // namespace foreword
