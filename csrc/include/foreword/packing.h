// Many matrices packed beside whatever their caller does meanwhile.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "foreword/matrix.h"

namespace foreword {

// A thread of its own packs, a piece of some tiles at a time, from construction on; the context's pool helps when
// asked. What the sources point to stays until this is gone. Allocates everything at once, so that no piece can fail.
// Not for a child that was forked before finish(): the thread is not there.
class Packing {
 public:
  struct Place {
    std::size_t matrix, part;
  };

  Packing(std::span<const std::vector<MatrixSource>> matrices, Context& context);
  ~Packing();  // what has not been begun stays undone
  Packing(const Packing&) = delete;
  Packing& operator=(const Packing&) = delete;

  // Each thread of the pool packs at most so many pieces; true when none is left to begin.
  bool help(std::size_t max_pieces);

  // The matrices in their order, once; waits for what others have begun.
  std::vector<PackedMatrix> finish();

  // The first part that holds an infinite value or a NaN, of all that is packed.
  std::optional<Place> not_finite() const;

 private:
  struct Run;
  void work(std::size_t max_pieces);

  Context& context_;
  std::vector<Run> runs_;
  std::vector<std::size_t> ends_;          // pieces up to and with each run
  std::vector<std::size_t> first_source_;  // sources before each matrix
  std::atomic<std::size_t> next_{0}, not_finite_;
  std::thread thread_;
};

}  // namespace foreword
