#include "matmul_avx2.h"
#include "matmul_float_kernel.h"
#include "simd_products_avx2.h"

namespace foreword::avx2 {

void product_float(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out) {
  float_product<Avx2Products>(weights, tiles, rows, out);
}

}  // namespace foreword::avx2
