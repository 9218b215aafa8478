#include "binding.h"

NB_MODULE(_native, module) {
  module.doc() = "Kernels of the cpu backend. Use foreword.ops, which checks and documents them.";
  bind_context(module);
  bind_matrix(module);
  bind_attention(module);
  bind_sampling(module);
}
