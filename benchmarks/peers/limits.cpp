// What this machine can do at most, beside which the rows are read: one line of JSON.
//   c++ -O3 -march=native -pthread limits.cpp -o limits && ./limits THREADS MIB_PER_THREAD [read]
// With `read` the memory's bandwidth alone, which takes half a second.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

// Runs `work(thread)` on all threads at once; returns the seconds from the first one's start to the last one's end. They
// look at the clock themselves: a thread that only waits may get no processor before they are half done.
double timed(int threads, const std::function<void(int)>& work) {
  std::barrier gate(threads);
  std::vector<Clock::time_point> begins(threads), ends(threads);
  std::vector<std::thread> pool;
  for (int thread = 0; thread < threads; ++thread) {
    pool.emplace_back([&, thread] {
      gate.arrive_and_wait();
      begins[thread] = Clock::now();
      work(thread);
      ends[thread] = Clock::now();
    });
  }
  for (auto& thread : pool) thread.join();
  const auto begin = *std::min_element(begins.begin(), begins.end()), end = *std::max_element(ends.begin(), ends.end());
  return std::chrono::duration<double>(end - begin).count();
}

struct Freed {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::uint64_t, Freed>;

constexpr std::size_t kHugePage = 2 << 20;

// Memory in huge pages where the system gives them: an engine may use them too, so the limit has to.
Memory huge_pages(std::size_t bytes) {
  Memory memory(static_cast<std::uint64_t*>(std::aligned_alloc(kHugePage, (bytes + kHugePage - 1) & ~(kHugePage - 1))));
#if defined(__linux__)
  if (memory) madvise(memory.get(), bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

// Bytes a second, read once from start to end by each thread, in its own memory: the best of a few rounds. 0: no memory.
double read_bytes_s(int threads, std::size_t bytes) {
  std::vector<Memory> memory(threads);
  for (auto& part : memory) {
    if (!(part = huge_pages(bytes))) return 0;
  }
  timed(threads, [&](int thread) { std::memset(memory[thread].get(), thread + 1, bytes); });
  std::vector<std::uint64_t> sums(threads);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const double seconds = timed(threads, [&](int thread) {
      const std::uint64_t* words = memory[thread].get();
      std::uint64_t sum[16] = {};
      for (std::size_t at = 0; at + 16 <= bytes / 8; at += 16) {
        for (int lane = 0; lane < 16; ++lane) sum[lane] += words[at + lane];
      }
      for (const auto part : sum) sums[thread] += part;
    });
    best = std::max(best, static_cast<double>(bytes) * threads / seconds);
  }
  volatile std::uint64_t sink = sums[0];
  (void)sink;
  return best;
}

#if defined(__AVX2__) && defined(__FMA__)
constexpr bool kMeasuresArithmetic = true;
constexpr long kRounds = 60'000'000;

// Multiply-adds a second of f32, from registers: ten chains hide the latency.
double float_madds_s(int threads) {
  std::vector<float> sinks(threads);
  const double seconds = timed(threads, [&](int thread) {
    __m256 sums[10];
    for (int chain = 0; chain < 10; ++chain) sums[chain] = _mm256_set1_ps(static_cast<float>(chain));
    const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(1e-4f);
    for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 10
      for (int chain = 0; chain < 10; ++chain) sums[chain] = _mm256_fmadd_ps(sums[chain], factor, term);
      asm volatile("" ::"x"(sums[0]));
    }
    for (const auto& sum : sums) sinks[thread] += _mm256_cvtss_f32(sum);
  });
  return 8.0 * 10 * kRounds * threads / seconds;
}

// Multiply-adds a second of 8-bit integers into 32-bit sums, the three instructions AVX2 has for it.
double int8_madds_s(int threads) {
  std::vector<int> sinks(threads);
  const double seconds = timed(threads, [&](int thread) {
    __m256i sums[8];
    for (auto& sum : sums) sum = _mm256_setzero_si256();
    const __m256i left = _mm256_set1_epi8(3), right = _mm256_set1_epi8(5), ones = _mm256_set1_epi16(1);
    for (long round = 0; round < kRounds / 2; ++round) {
#pragma GCC unroll 8
      for (int chain = 0; chain < 8; ++chain) {
        __m256i pairs = _mm256_maddubs_epi16(left, right);
        asm volatile("" : "+x"(pairs));
        sums[chain] = _mm256_add_epi32(sums[chain], _mm256_madd_epi16(pairs, ones));
      }
    }
    for (const auto& sum : sums) sinks[thread] += _mm256_extract_epi32(sum, 0);
  });
  return 32.0 * 8 * (kRounds / 2) * threads / seconds;
}
#else
constexpr bool kMeasuresArithmetic = false;
double float_madds_s(int) {
  return 0;
}
double int8_madds_s(int) {
  return 0;
}
#endif

}  // namespace

int main(int count, char** arguments) {
  const bool read_only = count == 4 && std::strcmp(arguments[3], "read") == 0;
  if (count != 3 && !read_only) {
    std::fprintf(stderr, "limits THREADS MIB_PER_THREAD [read]\n");
    return 2;
  }
  const int threads = std::atoi(arguments[1]);
  const std::size_t bytes = std::strtoull(arguments[2], nullptr, 10) << 20;
  if (threads < 1 || threads > 256 || bytes < (1u << 20)) {
    std::fprintf(stderr, "expected 1 to 256 threads and at least 1 MiB\n");
    return 2;
  }
  std::printf("{\"read GB/s\": %.2f", read_bytes_s(threads, bytes) / 1e9);
  if (kMeasuresArithmetic && !read_only) {
    std::printf(", \"f32 G madds/s\": %.1f", float_madds_s(threads) / 1e9);
    std::printf(", \"int8 G madds/s\": %.1f", int8_madds_s(threads) / 1e9);
  }
  std::printf("}\n");
  return 0;
}
