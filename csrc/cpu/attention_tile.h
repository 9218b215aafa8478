// Attention of one unit, per instruction set. Plain pointers only: nothing here is compiled into the kernels' files.
#pragma once

#include "attention_plan.h"

namespace foreword {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kPanel = 16;  // width of a packed panel: keys of a K panel, dimensions of a V panel

// Rows worked on together: their scores stay near from the first product to the last. A multiple of the rows of a
// product and of a vector. With 24, panels came from the second cache too often (39 instead of 46 G multiply-adds/s on
// a core).
inline constexpr std::size_t kBandRows = 48;

struct AttentionProblem {
  AttentionArgs args;
  KvCacheView cache;
  std::size_t group;           // H / J query heads to a KV head
  std::size_t padded_dim;      // D, rounded up to whole panels
  std::size_t partial_floats;  // of one partial row: padded_dim values, then peak and sum
  const AttentionToken* tokens;
  const std::uint32_t* unit_tokens;
  float* partials;
};

struct AttentionKernels {
  // The rows of `unit` that belong to the KV heads of `item`. `goes_on`: from what the tiles before gave, to out or to
  // what the tiles after go on from; else it leaves partial results. scratch: attention_scratch_floats().
  void (*attend)(const AttentionProblem& problem, const AttentionUnit& unit, const AttentionItem& item, bool goes_on,
                 float* scratch);
  // Takes the partial results of tiles [begin, end) of a token's heads that belong to one KV head into what the tiles
  // before gave; behind the last tile it writes to out.
  void (*merge)(const AttentionProblem& problem, const AttentionToken& token, std::size_t kv_head, std::size_t begin,
                std::size_t end);
};

// What attend() needs for items of up to so many rows.
std::size_t attention_scratch_floats(const AttentionProblem& problem, std::size_t rows);

extern const AttentionKernels kAttentionScalar;
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionNeon;
const AttentionKernels& attention_kernels(InstructionSet isa);

}  // namespace foreword
