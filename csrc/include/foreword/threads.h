// A fork-join pool for regions of microseconds: workers spin briefly, then sleep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace foreword {

class ThreadPool {
 public:
  explicit ThreadPool(std::size_t num_threads);  // the caller is thread 0; num_threads - 1 workers are started
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t num_threads() const;

  // Calls body(thread) once on each thread, thread in [0, num_threads()), and returns when all have returned.
  // body must not throw and must not call run() again.
  template <class Body>
  void run(Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_task([](void* argument, std::size_t thread) { (*static_cast<Plain*>(argument))(thread); },
             const_cast<void*>(static_cast<const void*>(std::addressof(body))));
  }

  // Inside body: returns when every thread of the region has called it, with all earlier writes visible.
  void barrier();

  // Inside body: calls work(begin, end) for ranges that together cover [0, num_items) once over all threads. A thread
  // takes its own share first, a piece of at most `piece` items at a time, then pieces that others have not begun: one
  // that is slower, or kept from running, holds nobody up. Every thread of the region calls it with the same numbers,
  // with a barrier, or the region's end, before the next such call.
  template <class Work>
  void divide(std::size_t num_items, std::size_t piece, std::size_t thread, Work&& work);

 private:
  using Task = void (*)(void* argument, std::size_t thread);
  void run_task(Task task, void* argument);
  std::uint32_t begin_division(std::size_t thread);
  // The next piece of `owner`'s share that nobody has taken, of `num_pieces`; num_pieces when there is none.
  std::size_t take_piece(std::size_t owner, std::uint32_t division, std::size_t num_pieces);
  struct State;
  std::unique_ptr<State> state_;
};

// Items [first, second) of `num_items` that belong to `thread`, split as evenly as can be, in order.
inline std::pair<std::size_t, std::size_t> split_evenly(std::size_t num_items, std::size_t thread,
                                                        std::size_t num_threads) {
  return {num_items * thread / num_threads, num_items * (thread + 1) / num_threads};
}

template <class Work>
void ThreadPool::divide(std::size_t num_items, std::size_t piece, std::size_t thread, Work&& work) {
  const std::size_t num_shares = num_threads();
  if (num_shares == 1) {
    if (num_items > 0) work(std::size_t{0}, num_items);
    return;
  }
  const std::uint32_t division = begin_division(thread);
  for (std::size_t i = 0; i < num_shares; ++i) {
    const std::size_t owner = (thread + i) % num_shares;
    const auto [begin, end] = split_evenly(num_items, owner, num_shares);
    const std::size_t num_pieces = (end - begin + piece - 1) / piece;
    for (std::size_t next; (next = take_piece(owner, division, num_pieces)) < num_pieces;) {
      const std::size_t first = begin + next * piece;
      work(first, end - first < piece ? end : first + piece);
    }
  }
}

}  // namespace foreword
