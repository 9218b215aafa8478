#include "kv_ops_kernel.h"
#include "simd_avx2.h"

namespace foreword {

const RopeStore kRopeStoreAvx2 = rope_store<Avx2>;

}  // namespace foreword
