#include "matmul_int8_kernel.h"
#include "matmul_neon.h"
#include "simd_products_neon.h"

namespace foreword::neon {

void product_int8(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out) {
  int8_product<NeonProducts>(weights, tiles, rows, out);
}

}  // namespace foreword::neon
