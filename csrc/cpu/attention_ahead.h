// Memory asked for before it is needed, while something else is worked on. Included by attention_kernel.h.
#pragma once

#include <cstddef>

#include "attention_tile.h"

namespace foreword {
namespace {

// Pieces of memory, kLines cache lines of which are asked for at each step of kStep turns of a product's loop. All at
// once they would fill the queue of loads, and the product would wait behind them. A piece whose size is no multiple of
// kLines lines has some asked for behind its end, which harms nobody.
template <std::size_t kTurns, std::size_t kLines>
struct LinesAhead {
  static constexpr std::size_t kStep = kTurns;
  static constexpr std::size_t kMaxPieces = kAttentionTile + 1;  // one a block of one key; see add_values_ahead

  const char* at = nullptr;
  const char* end = nullptr;
  std::size_t next = 0, num_pieces = 0;
  const char* begins[kMaxPieces];
  std::size_t sizes[kMaxPieces];

  void add(const void* begin, std::size_t size) {
    begins[num_pieces] = static_cast<const char*>(begin);
    sizes[num_pieces++] = size;
  }

  [[gnu::always_inline]] void step() {
    if (at >= end) {
      if (next == num_pieces) return;
      at = begins[next];
      end = at + sizes[next++];
    }
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kLines; ++i) __builtin_prefetch(at + i * kCacheLine);
    at += kLines * kCacheLine;
  }
};

}  // namespace
}  // namespace foreword
