#include <sched.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "foreword/threads.h"

using foreword::split_evenly;
using foreword::ThreadPool;

namespace {

std::size_t sum_of_thread_ids(ThreadPool& pool) {
  std::atomic<std::size_t> sum{0};
  pool.run([&](std::size_t thread) { sum += thread + 1; });
  return sum;
}

}  // namespace

TEST(threads, every_thread_runs_the_body_once) {
  for (std::size_t n : {1U, 2U, 3U, 9U}) {
    ThreadPool pool(n);
    CHECK(pool.num_threads() == n);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> calls(n);
      pool.run([&](std::size_t thread) { ++calls[thread]; });
      for (auto& count : calls) CHECK(count == 1);
    }
  }
}

TEST(threads, writes_before_a_barrier_are_seen_after_it) {
  for (std::size_t n : {1U, 2U, 3U, 5U}) {
    ThreadPool pool(n);
    std::vector<std::size_t> values(n);
    std::atomic<std::size_t> wrong{0};
    for (std::size_t round = 1; round < 100; ++round) {
      pool.run([&](std::size_t thread) {
        for (std::size_t step = 0; step < 3; ++step) {
          values[thread] = round * 10 + step;
          pool.barrier();
          for (std::size_t value : values) wrong += value != round * 10 + step;
          pool.barrier();
        }
      });
    }
    CHECK(wrong == 0);
  }
}

#if defined(__linux__)
// Both on one processor, the caller kept there: where the worker is after a barrier, and where it may be.
TEST(threads, a_worker_beside_another_thread_of_its_pool_moves_away) {
  cpu_set_t allowed;
  CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  if (CPU_COUNT(&allowed) < 2) return;
  ThreadPool pool(2);
  const int place = sched_getcpu();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(place), &one);
  CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
  int apart = 0;
  constexpr int kTries = 40;
  for (int i = 0; i < kTries; ++i) {
    std::atomic<bool> waiting{false};
    int processor = -1;
    cpu_set_t later;
    pool.run([&](std::size_t thread) {
      if (thread == 0) {
        while (!waiting) sched_yield();
      } else {
        sched_setaffinity(0, sizeof one, &one);
        sched_setaffinity(0, sizeof allowed, &allowed);
        waiting = true;
      }
      pool.barrier();
      if (thread == 1) {
        processor = sched_getcpu();
        sched_getaffinity(0, sizeof later, &later);
      }
    });
    apart += processor != place;
    CHECK(CPU_EQUAL(&later, &allowed));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // it moves once a millisecond at most
  }
  CHECK(sched_setaffinity(0, sizeof allowed, &allowed) == 0);
  CHECK_MSG(apart > kTries / 2, "%d of %d", apart, kTries);
}
#endif

TEST(threads, every_item_that_is_divided_is_worked_on_once) {
  for (std::size_t n : {1U, 2U, 3U, 5U}) {
    ThreadPool pool(n);
    for (std::size_t items = 0; items < 40; ++items) {
      for (std::size_t piece : {1U, 2U, 7U, 100U}) {
        std::vector<std::atomic<int>> times(items);
        std::atomic<bool> too_long{false};
        pool.run([&](std::size_t thread) {
          for (int round = 0; round < 3; ++round) {
            pool.divide(items, piece, thread, [&](std::size_t begin, std::size_t end) {
              if (n > 1 && end - begin > piece) too_long = true;
              for (std::size_t i = begin; i < end; ++i) ++times[i];
            });
            pool.barrier();
          }
        });
        CHECK(!too_long);
        for (auto& count : times) CHECK_MSG(count == 3, "%zu threads, %zu items of %zu", n, items, piece);
      }
    }
  }
}

// The last thread stands in its first piece until all the others are done: they are, though some are of its share.
TEST(threads, what_a_waiting_thread_has_not_begun_is_done_by_others) {
  for (std::size_t n : {2U, 3U}) {
    ThreadPool pool(n);
    constexpr std::size_t kItems = 60, kPiece = 4;
    std::atomic<std::size_t> done{0};
    pool.run([&](std::size_t thread) {
      pool.divide(kItems, kPiece, thread, [&](std::size_t begin, std::size_t end) {
        if (thread == n - 1) {
          while (done + (end - begin) < kItems) std::this_thread::yield();
        }
        done += end - begin;
      });
    });
    CHECK(done == kItems);
  }
}

TEST(threads, zero_threads_are_refused) {
  CHECK_THROWS(ThreadPool(0), std::invalid_argument);
}

TEST(threads, callers_on_several_threads_take_turns) {
  ThreadPool pool(2);
  std::atomic<std::size_t> wrong{0};
  auto caller = [&] {
    for (int round = 0; round < 200; ++round) wrong += sum_of_thread_ids(pool) != 3;
  };

  std::thread first(caller), second(caller);
  first.join();
  second.join();

  CHECK(wrong == 0);
}

TEST(threads, a_region_rounds_to_nearest_whatever_the_caller_does) {
  CHECK(std::fesetround(FE_DOWNWARD) == 0);
  ThreadPool pool(3);  // threads begin with the modes of the one that starts them
  std::atomic<int> wrong{0};
  pool.run([&](std::size_t) {
    volatile float one = 1.0f, ten = 10.0f;
    const float tenth = one / ten;  // 0x1.99999ap-4; down 0x1.999998p-4, ten of which are below 1
    wrong += tenth * 10.0f != 1.0f;
  });
  const int kept = std::fegetround();
  std::fesetround(FE_TONEAREST);

  CHECK(wrong == 0);
  CHECK(kept == FE_DOWNWARD);
}

TEST(threads, split_evenly_covers_all_items_in_order) {
  for (std::size_t items = 0; items < 20; ++items) {
    for (std::size_t n = 1; n < 6; ++n) {
      std::size_t next = 0;
      for (std::size_t thread = 0; thread < n; ++thread) {
        const auto [begin, end] = split_evenly(items, thread, n);
        CHECK(begin == next && end >= begin && end - begin <= items / n + 1);
        next = end;
      }
      CHECK(next == items);
    }
  }
}
