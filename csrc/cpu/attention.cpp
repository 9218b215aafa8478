#include "foreword/attention.h"

#include <algorithm>

#include "attention_stage.h"

namespace foreword {
namespace {

AlignedFloats allocate(std::size_t count) {
  return AlignedFloats(static_cast<float*>(::operator new(count * sizeof(float), std::align_val_t{kCacheLine})));
}

}  // namespace

const AttentionKernels& attention_kernels([[maybe_unused]] InstructionSet isa) {
#if FOREWORD_HAVE_AVX2
  if (isa == InstructionSet::kAvx2) return kAttentionAvx2;
#endif
#if FOREWORD_HAVE_NEON
  if (isa == InstructionSet::kNeon) return kAttentionNeon;
#endif
  return kAttentionScalar;
}

AttentionStage::AttentionStage(const AttentionArgs& args, const KvCacheView& cache, const Context& context)
    : plan_(plan_attention(args, cache, context.pool.num_threads())), kernels_(attention_kernels(context.isa)) {
  problem_.args = args;
  problem_.cache = cache;
  problem_.group = args.num_heads / cache.num_kv_heads;
  problem_.padded_dim = (cache.head_dim + kPanel - 1) / kPanel * kPanel;
  problem_.partial_floats = problem_.padded_dim + kPanel;
  problem_.tokens = plan_.tokens.data();
  problem_.unit_tokens = plan_.unit_tokens.data();
  scratch_floats_ = attention_scratch_floats(problem_, plan_.max_rows);
  scratch_ = allocate(scratch_floats_ * context.pool.num_threads());
  if (plan_.num_partials > 0) {
    partials_ = allocate(plan_.num_partials * problem_.partial_floats);
    problem_.partials = partials_.get();
    progress_ = std::vector<Progress>(plan_.tokens.size() * cache.num_kv_heads);
  }
  start(cache.k, cache.v);
}

void AttentionStage::start(void* k, void* v) {
  problem_.cache.k = k;
  problem_.cache.v = v;
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    progress_[i].num_merged.store(0, std::memory_order_relaxed);
    progress_[i].unfinished.store(plan_.tokens[i / problem_.cache.num_kv_heads].num_units, std::memory_order_relaxed);
  }
  next_.store(0, std::memory_order_relaxed);
}

void AttentionStage::work(std::size_t thread) {
  while (true) {
    const std::size_t next = next_.fetch_add(1, std::memory_order_relaxed);
    if (next >= plan_.items.size()) return;
    const AttentionItem& item = plan_.items[next];
    const AttentionUnit& unit = plan_.units[item.unit];
    const bool goes_on = !unit.split || can_go_on(unit, item);
    kernels_.attend(problem_, unit, item, goes_on, scratch_.get() + thread * scratch_floats_);
    if (!unit.split) continue;
    for (std::size_t kv_head = item.head_begin; kv_head < item.head_end; ++kv_head) finish(unit, kv_head, goes_on);
  }
}

bool AttentionStage::can_go_on(const AttentionUnit& unit, const AttentionItem& item) {
  for (std::size_t i = 0; i < unit.num_tokens; ++i) {
    for (std::size_t kv_head = item.head_begin; kv_head < item.head_end; ++kv_head) {
      if (progress_of(unit, i, kv_head).num_merged.load(std::memory_order_acquire) != unit.tile_begin) return false;
    }
  }
  return true;
}

void AttentionStage::finish(const AttentionUnit& unit, std::size_t kv_head, bool went_on) {
  for (std::size_t i = 0; i < unit.num_tokens; ++i) {
    const AttentionToken& token = plan_.tokens[plan_.unit_tokens[unit.token_begin + i]];
    Progress& progress = progress_of(unit, i, kv_head);
    const auto merge_to = [&](std::size_t begin, std::size_t end) {
      if (begin < token.num_tiles()) {
        kernels_.merge(problem_, token, kv_head, begin, std::min(end, token.num_tiles()));
      }
    };
    if (went_on) {
      progress.num_merged.store(unit.tile_end, std::memory_order_release);
    } else if (progress.num_merged.load(std::memory_order_acquire) == unit.tile_begin) {
      merge_to(unit.tile_begin, unit.tile_end);
      progress.num_merged.store(unit.tile_end, std::memory_order_release);
    }
    if (progress.unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      merge_to(progress.num_merged.load(std::memory_order_relaxed), token.num_tiles());
    }
  }
}

std::size_t attention_scratch_floats(const AttentionProblem& problem, std::size_t rows) {
  const std::size_t dim = problem.cache.head_dim, padded_dim = problem.padded_dim;
  const std::size_t padded_rows = (rows + kPanel - 1) / kPanel * kPanel;
  const std::size_t band = kBandRows * (kAttentionTile + padded_dim);
  const std::size_t floats = band + padded_rows * (padded_dim + dim + 10) + kAttentionTile * (dim + padded_dim + 2);
  return (floats + kPanel - 1) / kPanel * kPanel;
}

void paged_attention(Context& context, const AttentionArgs& args, const KvCacheView& cache) {
  AttentionStage attention(args, cache, context);
  context.pool.run([&](std::size_t thread) { attention.work(thread); });
}

}  // namespace foreword
