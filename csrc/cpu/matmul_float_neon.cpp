#include "matmul_float_kernel.h"
#include "matmul_neon.h"
#include "simd_products_neon.h"

namespace foreword::neon {

void product_float(const TileView& weights, std::size_t begin, std::size_t end, const ActivationView& rows,
                   const OutputView& out) {
  float_product<NeonProducts>(weights, begin, end, rows, out);
}

}  // namespace foreword::neon
