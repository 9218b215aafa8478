// Rotation, KV writes and attention as stages of a region that has others before and after them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "attention_tile.h"

namespace foreword {

struct AlignedDelete {
  void operator()(float* p) const { ::operator delete(p, std::align_val_t{kCacheLine}); }
};
using AlignedFloats = std::unique_ptr<float, AlignedDelete>;

// This thread's share of rope_store_kv() in attention.h. scratch: [threads, D].
void rope_store_stage(const Context& context, const RopeStoreArgs& args, const KvCacheView& cache, float* scratch,
                      std::size_t thread);

// Attention of one step: its plan, which is the same for every layer, its memory, and the state its threads share.
class AttentionStage {
 public:
  // `args` and the sizes of `cache` are those of every layer; ready for the layer of `cache`.
  AttentionStage(const AttentionArgs& args, const KvCacheView& cache, const Context& context);

  // Makes ready for a layer with these caches. One thread calls it, with a barrier between it and any work().
  void start(void* k, void* v);

  // Every thread calls it; a barrier after it completes `out`.
  void work(std::size_t thread);

 private:
  // What is known of one token's heads of one KV head, where the token has several units.
  struct Progress {
    std::atomic<std::uint32_t> num_merged;  // tiles that its sums so far hold; only the unit of the next one moves it
    std::atomic<std::uint32_t> unfinished;  // units
  };

  Progress& progress_of(const AttentionUnit& unit, std::size_t i, std::size_t kv_head) {
    return progress_[plan_.unit_tokens[unit.token_begin + i] * problem_.cache.num_kv_heads + kv_head];
  }

  // Whether all tokens of the unit have the tiles before its own in their sums.
  bool can_go_on(const AttentionUnit& unit, const AttentionItem& item);

  // Merges what can be merged now that the unit is done: its own tiles, or all of a token whose last unit it was.
  void finish(const AttentionUnit& unit, std::size_t kv_head, bool went_on);

  AttentionPlan plan_;
  const AttentionKernels& kernels_;
  AttentionProblem problem_{};
  std::size_t scratch_floats_ = 0;
  AlignedFloats scratch_, partials_;
  std::vector<Progress> progress_;  // [tokens, J]
  alignas(kCacheLine) std::atomic<std::size_t> next_{0};
};

}  // namespace foreword
