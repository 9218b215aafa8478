#include "matmul_avx2.h"
#include "matmul_float_kernel.h"
#include "simd_products_avx2.h"

namespace foreword::avx2 {

void product_float(const TileView& weights, std::size_t begin, std::size_t end, const ActivationView& rows,
                   const OutputView& out) {
  float_product<Avx2Products>(weights, begin, end, rows, out);
}

}  // namespace foreword::avx2
