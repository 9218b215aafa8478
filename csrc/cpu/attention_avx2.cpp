#include "attention_unit.h"
#include "simd_avx2.h"

namespace foreword {

const AttentionKernels kAttentionAvx2{attend<Avx2>, merge_partials<Avx2>};

}  // namespace foreword
