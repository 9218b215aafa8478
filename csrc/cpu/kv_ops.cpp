#include <vector>

#include "attention_stage.h"
#include "kv_ops_isa.h"

namespace foreword {
namespace {

RopeStore rope_store_for([[maybe_unused]] InstructionSet isa) {
#if FOREWORD_HAVE_AVX2
  if (isa == InstructionSet::kAvx2) return kRopeStoreAvx2;
#endif
#if FOREWORD_HAVE_NEON
  if (isa == InstructionSet::kNeon) return kRopeStoreNeon;
#endif
  return kRopeStoreScalar;
}

}  // namespace

void rope_store_stage(const Context& context, const RopeStoreArgs& args, const KvCacheView& cache, float* scratch,
                      std::size_t thread) {
  const auto [begin, end] = split_evenly(args.num_tokens * cache.num_kv_heads, thread, context.pool.num_threads());
  rope_store_for(context.isa)(args, cache, begin, end, scratch + thread * cache.head_dim);
}

void rope_store_kv(Context& context, const RopeStoreArgs& args, const KvCacheView& cache) {
  std::vector<float> scratch(context.pool.num_threads() * cache.head_dim);
  context.pool.run([&](std::size_t thread) { rope_store_stage(context, args, cache, scratch.data(), thread); });
}

}  // namespace foreword
