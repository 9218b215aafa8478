// A fork-join pool for regions of microseconds: workers spin briefly, then sleep.
#pragma once

#include <cstddef>
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

 private:
  using Task = void (*)(void* argument, std::size_t thread);
  void run_task(Task task, void* argument);
  struct State;
  std::unique_ptr<State> state_;
};

// Items [first, second) of `num_items` that belong to `thread`, split as evenly as can be, in order.
inline std::pair<std::size_t, std::size_t> split_evenly(std::size_t num_items, std::size_t thread,
                                                        std::size_t num_threads) {
  return {num_items * thread / num_threads, num_items * (thread + 1) / num_threads};
}

}  // namespace foreword
