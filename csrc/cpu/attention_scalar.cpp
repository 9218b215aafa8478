#include "attention_unit.h"
#include "simd_portable.h"

namespace foreword {

const AttentionKernels kAttentionScalar{attend<Portable>, merge_partials<Portable>};

}  // namespace foreword
