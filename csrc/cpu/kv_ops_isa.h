// KV writes, per instruction set.
#pragma once

#include "foreword/attention.h"

namespace foreword {

// Tokens [begin, end) of rope_store_kv. scratch: D floats.
using RopeStore = void (*)(const RopeStoreArgs& args, const KvCacheView& cache, std::size_t begin, std::size_t end,
                           float* scratch);

extern const RopeStore kRopeStoreScalar;
extern const RopeStore kRopeStoreAvx2;

}  // namespace foreword
