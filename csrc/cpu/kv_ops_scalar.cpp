#include "kv_ops_kernel.h"
#include "simd_portable.h"

namespace foreword {

const RopeStore kRopeStoreScalar = rope_store<Portable>;

}  // namespace foreword
