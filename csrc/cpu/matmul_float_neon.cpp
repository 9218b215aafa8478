#include "matmul_float_kernel.h"
#include "matmul_neon.h"
#include "simd_products_neon.h"

namespace foreword::neon {

void product_float(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out) {
  float_product<NeonProducts>(weights, tiles, rows, out);
}

}  // namespace foreword::neon
