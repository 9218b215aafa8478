#include "binding.h"

NB_MODULE(_native, module) {
  module.doc() = "Kernels of the cpu backend. Use foreword.ops, which checks and documents them.";
  nb::set_leak_warnings(false);  // a model that lives until the interpreter ends is no leak
  bind_context(module);
  bind_matrix(module);
  bind_attention(module);
  bind_decoder(module);
  bind_sampling(module);
  bind_vocabulary(module);
}
