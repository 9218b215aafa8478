// Who computes: a pool of threads and the instruction set chosen once, at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "foreword/threads.h"

namespace foreword {

// kAvx2 means AVX2 + FMA + F16C, kNeon means NEON with the dot products of ARMv8.2.
enum class InstructionSet { kScalar, kAvx2, kNeon };

// Best instruction set this machine has and this build carries.
InstructionSet detect_instruction_set();
std::string_view instruction_set_name(InstructionSet isa);  // "scalar", "avx2", "neon"

// Where packed weights lie: each on its own, or several together where they are small.
class WeightMemory {
 public:
  std::shared_ptr<std::uint8_t> allocate(std::size_t num_bytes);  // 64-byte aligned, not initialised

 private:
  struct Chunk {
    std::weak_ptr<std::uint8_t> memory;
    std::size_t used = 0;  // given out from the front
  };

  static std::shared_ptr<std::uint8_t> place(Chunk& chunk, std::shared_ptr<std::uint8_t> memory, std::size_t num_bytes);

  std::mutex mutex_;
  std::vector<Chunk> chunks_;  // those that some matrix keeps alive
};

// Every kernel takes one. Not copied; outlives the calls that use it. A context serves one caller at a time.
struct Context {
  Context(std::size_t num_threads, InstructionSet isa) : pool(num_threads), isa(isa) {}
  ThreadPool pool;
  InstructionSet isa;
  WeightMemory weights;
};

}  // namespace foreword
