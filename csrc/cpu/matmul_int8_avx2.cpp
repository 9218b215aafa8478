#include "matmul_avx2.h"
#include "matmul_int8_kernel.h"
#include "simd_products_avx2.h"

namespace foreword::avx2 {

void product_int8(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out) {
  int8_product<Avx2Products>(weights, tiles, rows, out);
}

}  // namespace foreword::avx2
