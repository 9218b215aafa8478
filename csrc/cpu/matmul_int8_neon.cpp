#include "matmul_int8_kernel.h"
#include "matmul_neon.h"
#include "simd_products_neon.h"

namespace foreword::neon {

void product_int8(const TileView& weights, std::size_t begin, std::size_t end, const ActivationView& rows,
                  const OutputView& out) {
  int8_product<NeonProducts>(weights, begin, end, rows, out);
}

}  // namespace foreword::neon
