#include "sampling_kernel.h"
#include "simd_rows_neon.h"

namespace foreword {

const LogitPasses kLogitPassesNeon{largest<NeonRows>, count_above<NeonRows>, gather_above<NeonRows>, weigh<NeonRows>};

}  // namespace foreword
