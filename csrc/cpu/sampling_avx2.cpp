#include "sampling_kernel.h"
#include "simd_rows_avx2.h"

namespace foreword {

const LogitPasses kLogitPassesAvx2{largest<Avx2Rows>, count_above<Avx2Rows>, gather_above<Avx2Rows>, weigh<Avx2Rows>};

}  // namespace foreword
