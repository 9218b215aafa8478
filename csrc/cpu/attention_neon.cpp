#include "attention_unit.h"
#include "simd_neon.h"

namespace foreword {

const AttentionKernels kAttentionNeon{attend<Neon>, merge_partials<Neon>};

}  // namespace foreword
