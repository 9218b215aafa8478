#include "kv_ops_kernel.h"
#include "simd_neon.h"

namespace foreword {

const RopeStore kRopeStoreNeon = rope_store<Neon>;

}  // namespace foreword
