#include "foreword/context.h"

namespace foreword {

InstructionSet detect_instruction_set() {
#if FOREWORD_HAVE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    return InstructionSet::kAvx2;
  }
#endif
  return InstructionSet::kScalar;
}

std::string_view instruction_set_name(InstructionSet isa) {
  switch (isa) {
    case InstructionSet::kScalar:
      return "scalar";
    case InstructionSet::kAvx2:
      return "avx2";
  }
  return "unknown";
}

}  // namespace foreword
