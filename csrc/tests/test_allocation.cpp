// Memory that runs out: whichever allocation of a call fails, the caller gets std::bad_alloc, and the same call made
// again has the bits it would have had.
#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "check.h"
#include "decoder_cases.h"
#include "foreword/sampling.h"

namespace {

constexpr long kNever = -1;
std::atomic<long> allocations_left{kNever};  // that succeed before one fails, on whatever thread

bool must_fail() {
  if (allocations_left.load(std::memory_order_relaxed) == kNever) return false;
  return allocations_left.fetch_sub(1, std::memory_order_relaxed) == 0;
}

void* allocate(std::size_t size, std::size_t alignment) {
  void* memory = nullptr;
  if (!must_fail()) memory = std::aligned_alloc(alignment, (size + alignment) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return allocate(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {  // or a sanitizer's own, which we couldn't free
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

using namespace foreword;
using namespace foreword::test;

namespace {

// Lets the first allocation of `call` fail, then the second, until none is left to fail; `check` looks at what the call
// did once it was made again, or did without that memory. Each on a thread of its own, so that nothing kept from
// earlier calls spares allocations.
std::size_t fail_each_allocation(const std::function<void()>& call, const std::function<void()>& check) {
  for (long nth = 0;; ++nth) {
    bool was_last = false;
    std::thread([&] {
      bool failed = false;
      allocations_left = nth;
      try {
        call();
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      was_last = allocations_left.exchange(kNever) >= 0;
      if (failed) call();
    }).join();
    check();
    if (was_last) return static_cast<std::size_t>(nth);
  }
}

struct Logits {
  static constexpr std::size_t kVocabulary = 3000, kBest = 5;
  std::size_t num_rows;
  std::vector<float> values;
  std::vector<SampleRow> rows;

  Logits(std::size_t num_rows, std::mt19937& random)
      : num_rows(num_rows), values(random_floats(num_rows * kVocabulary, random, 4.0f)) {
    for (std::size_t r = 0; r < num_rows; ++r) {
      const auto index = static_cast<std::uint32_t>(r);
      rows.push_back({r % 3 == 0 ? 0.0f : 1.0f, r % 3 == 1 ? 40 : 0, r % 2 == 0 ? 0.9f : 1.0f, 0.0f, 7, index, 0});
    }
  }

  std::vector<std::int32_t> drawn(Context& context) const {
    std::vector<std::int32_t> tokens(num_rows, -1);
    sample(context, values.data(), num_rows, kVocabulary, rows.data(), tokens.data());
    return tokens;
  }

  std::vector<std::int32_t> best(Context& context) const {
    const std::vector<std::int32_t> tokens(num_rows, 1);
    std::vector<std::int32_t> ranks(num_rows), ids(num_rows * kBest);
    std::vector<float> logprobs(num_rows), top(num_rows * kBest);
    top_logprobs(context, values.data(), num_rows, kVocabulary, tokens.data(), kBest, logprobs.data(), ranks.data(),
                 ids.data(), top.data());
    return ids;
  }
};

}  // namespace

TEST(allocation, failing_in_a_pass_leaves_nothing_half_done) {
  std::mt19937 random(21);
  for (const std::size_t num_threads : {1, 3}) {
    Context context(num_threads, detect_instruction_set());
    for (const SourceFormat format : {SourceFormat::kF32, SourceFormat::kQ8_0}) {
      const TestModel test(format, true, context, random);
      const TestStep made({1, 40, 3}, {33, 40, 150}, random);
      const DecoderStep step = made.step(test, true);
      State expected(step.num_tokens), got(step.num_tokens);
      run_decoder(context, test.model, expected.caches.data(), expected.buffers(), step);
      const std::size_t num_failed = fail_each_allocation(
          [&] { run_decoder(context, test.model, got.caches.data(), got.buffers(), step); },
          [&] { CHECK(same(got.k, expected.k) && same(got.v, expected.v) && same(got.hidden, expected.hidden)); });
      CHECK(num_failed >= 4);
    }
  }
}

TEST(allocation, failing_in_a_draw_is_told_to_the_caller) {
  std::mt19937 random(22);
  for (const std::size_t num_threads : {1, 3}) {
    Context context(num_threads, detect_instruction_set());
    for (const std::size_t num_rows : {1, 2, 7}) {
      const Logits logits(num_rows, random);
      const std::vector<std::int32_t> drawn = logits.drawn(context), best = logits.best(context);
      std::vector<std::int32_t> got;
      CHECK(fail_each_allocation([&] { got = logits.drawn(context); }, [&] { CHECK(same(got, drawn)); }) >= 2);
      CHECK(fail_each_allocation([&] { got = logits.best(context); }, [&] { CHECK(same(got, best)); }) >= 2);
    }
  }
}

TEST(allocation, failing_while_a_matrix_is_packed_or_a_product_made_leaves_nothing_half_done) {
  std::mt19937 random(23);
  for (const std::size_t num_threads : {1, 3}) {
    Context context(num_threads, detect_instruction_set());
    const RandomSource quantised = random_source(SourceFormat::kQ4_0, 96, 64, random),
                       plain = random_source(SourceFormat::kF32, 32, 64, random);
    const MatrixSource parts[] = {quantised.source(), plain.source()};
    const std::vector<float> x = random_floats(5 * 64, random);
    const auto product = [&] {
      const PackedMatrix matrix(parts, context);
      std::vector<float> out(5 * 128);
      linear(context, x.data(), 64, 5, {}, matrix, nullptr, false, out.data(), 128);
      return out;
    };
    const std::vector<float> expected = product();
    std::vector<float> got;
    CHECK(fail_each_allocation([&] { got = product(); }, [&] { CHECK(same(got, expected)); }) >= 4);
  }
}

TEST(allocation, failing_while_threads_start_leaves_none_behind) {
  std::size_t num_ran = 0;
  const auto start_and_run = [&] {
    ThreadPool pool(4);
    std::atomic<std::size_t> count{0};
    pool.run([&](std::size_t) { ++count; });
    num_ran = count;
  };
  CHECK(fail_each_allocation(start_and_run, [&] { CHECK(num_ran == 4); }) >= 5);
}
