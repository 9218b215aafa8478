#include "foreword/context.h"

#if FOREWORD_HAVE_NEON
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace foreword {

InstructionSet detect_instruction_set() {
#if FOREWORD_HAVE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    return InstructionSet::kAvx2;
  }
#endif
#if FOREWORD_HAVE_NEON
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) return InstructionSet::kNeon;
#endif
  return InstructionSet::kScalar;
}

std::string_view instruction_set_name(InstructionSet isa) {
  switch (isa) {
    case InstructionSet::kScalar:
      return "scalar";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kNeon:
      return "neon";
  }
  return "unknown";
}

}  // namespace foreword
