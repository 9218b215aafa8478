// KV writes, per instruction set.
#pragma once

#include "foreword/attention.h"

namespace foreword {

// Items [begin, end) of rope_store_kv, an item being one KV head of one token (t * J + j) with the query heads that
// read it. scratch: D floats.
using RopeStore = void (*)(const RopeStoreArgs& args, const KvCacheView& cache, std::size_t begin, std::size_t end,
                           float* scratch);

extern const RopeStore kRopeStoreScalar;
extern const RopeStore kRopeStoreAvx2;
extern const RopeStore kRopeStoreNeon;

}  // namespace foreword
