// Memory asked for before it is needed, while something else is worked on. Included by attention_kernel.h.
#pragma once

#include <cstddef>

#include "attention_tile.h"

namespace foreword {
namespace {

// Pieces of memory, kLines cache lines of which are asked for at each step of kStep turns of a product's loop. All at
// once they would fill the queue of loads, and the product would wait behind them.
template <std::size_t kTurns, std::size_t kLines>
struct LinesAhead {
  static constexpr std::size_t kStep = kTurns;
  static constexpr std::size_t kMaxPieces = 2 * (kAttentionTile + 1);  // two a block, were they as short as can be

  struct Piece {
    const char* at;
    const char* end;
  };
  Piece pieces[kMaxPieces];
  std::size_t piece = 0, num_pieces = 0;

  void add(const void* begin, std::size_t size) {
    const char* const at = static_cast<const char*>(begin);
    pieces[num_pieces++] = {at, at + size};
  }

  [[gnu::always_inline]] void step() {
    for (std::size_t i = 0; i < kLines && piece < num_pieces; ++i) {
      Piece& now = pieces[piece];
      __builtin_prefetch(now.at);
      now.at += kCacheLine;
      if (now.at >= now.end) ++piece;
    }
  }
};

}  // namespace
}  // namespace foreword
