// Philox 4x32-10, a counter-based generator: no state, any word of any stream by itself.
// Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace foreword {

inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ULL * counter[0], b = 0xCD9E8D57ULL * counter[2];
    const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
    counter = {high(b) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b), high(a) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

}  // namespace foreword
