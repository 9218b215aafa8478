// One region at a time: the caller publishes a task by moving `epoch`, works as thread 0, and waits for `unfinished` to
// fall to zero. Waiting spins for as long as the gap between two regions of a decode step, then sleeps in the kernel. A
// thread that shares its processor with another of the pool sleeps at once: the other can't run while it spins
// (spinning then cost 105 us a region, sleeping costs 10). The kernel wakes a worker on its waker's processor whenever
// something else, a server's client say, runs on the worker's own just then, and on a machine of few processors never
// looks for an idle one: both threads of two stayed on one processor for seconds. So a worker that finds itself beside
// another thread of its pool moves away.
#include "foreword/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace foreword {
namespace {

constexpr std::chrono::microseconds kSpinTime{50};
constexpr std::chrono::milliseconds kMoveInterval{1};  // so that a kernel which insists costs little

inline void pause_thread() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// Rounding mode and flush-to-zero are the caller's; inside a region they are the default ones on every thread, so that
// bits depend neither on the caller nor on which thread did the work.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() : saved_(control()) { set_control(kDefault); }
  ~DefaultFloatingPoint() { set_control(saved_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
#if defined(__x86_64__)
  using Control = unsigned;
  static constexpr Control kDefault = 0x1f80;  // exceptions masked, to nearest, subnormals kept
  static Control control() { return _mm_getcsr(); }
  static void set_control(Control value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Control = std::uint64_t;
  static constexpr Control kDefault = 0;  // the same, and IEEE half precision
  static Control control() {
    Control value;
    asm volatile("mrs %0, fpcr" : "=r"(value)::"memory");
    return value;
  }
  static void set_control(Control value) { asm volatile("msr fpcr, %0" ::"r"(value) : "memory"); }
#else  // the rounding mode alone
  using Control = int;
  static constexpr Control kDefault = FE_TONEAREST;
  static Control control() { return std::fegetround(); }
  static void set_control(Control value) { std::fesetround(value); }
#endif
  Control saved_;
};

int current_processor() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// The calling thread's number in the region that it works in.
thread_local std::size_t region_thread = 0;

// Returns once `word` differs from `old`.
void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t old, bool spin) {
  if (spin) {
    const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < 32; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        pause_thread();
      }
    } while (std::chrono::steady_clock::now() < deadline);
  }
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::State {
  explicit State(std::size_t num_threads) : num_threads(num_threads), processors(num_threads), shares(num_threads) {
    for (Processor& processor : processors) processor.number.store(-1, std::memory_order_relaxed);
  }

  void start_workers();
  void stop_workers();
  void work(std::size_t thread, std::uint32_t seen);
  bool may_spin(std::size_t thread);
  bool is_shared(std::size_t thread, int processor) const;
  bool move_away(std::size_t thread) const;

  struct alignas(64) Processor {
    std::atomic<int> number;
    std::chrono::steady_clock::time_point moved;  // the thread's own
  };

  // A thread's share of what is divided: which division was the last that somebody took a piece in, in the upper half,
  // and how many pieces have been taken in it. One that begins needs nobody to put the counts of the last one back.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> taken{0};
    std::uint32_t division = 0;  // the thread's own count of divisions, the same on all of them
  };

  const std::size_t num_threads;
  std::vector<Processor> processors;  // where each thread was last seen
  std::vector<Share> shares;
  std::mutex region;          // held while a region runs
  bool workers_lost = false;  // set in a forked child, which has only the thread that forked
  std::vector<std::thread>* workers = nullptr;
  Task task = nullptr;  // null: stop
  void* argument = nullptr;
  alignas(64) std::atomic<std::uint32_t> epoch{0};
  alignas(64) std::atomic<std::uint32_t> unfinished{0};
  alignas(64) std::atomic<std::uint32_t> arrived{0};
  alignas(64) std::atomic<std::uint32_t> phase{0};

  // All pools, for the fork handlers: a fork waits for running regions, so a child never sees half of one.
  struct Registry {
    std::mutex mutex;
    std::vector<State*> pools;
  };
  static Registry& registry();
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();
};

ThreadPool::State::Registry& ThreadPool::State::registry() {
  static Registry* instance = [] {
    Registry* made = new Registry;  // never destroyed: a fork may come after static destructors
    if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) throw std::bad_alloc();
    return made;
  }();
  return *instance;
}

void ThreadPool::State::before_fork() {
  Registry& all = registry();
  all.mutex.lock();
  for (State* pool : all.pools) pool->region.lock();
}

void ThreadPool::State::after_fork_in_parent() {
  Registry& all = registry();
  for (State* pool : all.pools) pool->region.unlock();
  all.mutex.unlock();
}

void ThreadPool::State::after_fork_in_child() {
  Registry& all = registry();
  for (State* pool : all.pools) {
    pool->workers_lost = true;
    pool->region.unlock();
  }
  all.mutex.unlock();
}

void ThreadPool::State::start_workers() {
  workers = new std::vector<std::thread>;
  const std::uint32_t seen = epoch.load(std::memory_order_relaxed);
  try {
    workers->reserve(num_threads - 1);
    for (std::size_t thread = 1; thread < num_threads; ++thread) {
      workers->emplace_back([this, thread, seen] { work(thread, seen); });
    }
  } catch (...) {
    stop_workers();
    throw;
  }
  workers_lost = false;
}

void ThreadPool::State::stop_workers() {
  task = nullptr;
  epoch.fetch_add(1, std::memory_order_release);
  epoch.notify_all();
  for (std::thread& worker : *workers) worker.join();
  delete workers;
  workers = nullptr;
}

// False if another thread of the pool was last seen on the processor that `thread`, the caller, is on and stays on.
bool ThreadPool::State::may_spin(std::size_t thread) {
  Processor& place = processors[thread];
  int mine = current_processor();
  if (mine < 0) return num_threads <= std::thread::hardware_concurrency();
  bool shared = is_shared(thread, mine);
  if (shared && thread != 0) {  // thread 0 is the caller's own
    const auto now = std::chrono::steady_clock::now();
    if (now - place.moved >= kMoveInterval) {
      place.moved = now;
      if (move_away(thread)) shared = is_shared(thread, mine = current_processor());
    }
  }
  place.number.store(mine, std::memory_order_relaxed);
  return !shared;
}

bool ThreadPool::State::is_shared(std::size_t thread, int processor) const {
  for (std::size_t other = 0; other < num_threads; ++other) {
    if (other != thread && processors[other].number.load(std::memory_order_relaxed) == processor) return true;
  }
  return false;
}

// Moves `thread`, the caller, to a processor that it may use and no other of the pool was last seen on; where it runs
// from then on is for the kernel to choose again. False if there is none, or the process may not.
bool ThreadPool::State::move_away(std::size_t thread) const {
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  cpu_set_t free = allowed;
  for (std::size_t other = 0; other < num_threads; ++other) {
    const int taken = processors[other].number.load(std::memory_order_relaxed);
    if (other != thread && taken >= 0) CPU_CLR(static_cast<std::size_t>(taken), &free);
  }
  if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof free, &free) != 0) return false;
  return sched_setaffinity(0, sizeof allowed, &allowed) == 0;
#else
  return false;
#endif
}

void ThreadPool::State::work(std::size_t thread, std::uint32_t seen) {
  region_thread = thread;
  while (true) {
    wait_for_change(epoch, seen, may_spin(thread));
    processors[thread].number.store(current_processor(), std::memory_order_relaxed);
    seen = epoch.load(std::memory_order_acquire);
    if (task == nullptr) return;
    {
      DefaultFloatingPoint guard;
      task(argument, thread);
    }
    if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
  }
}

ThreadPool::ThreadPool(std::size_t num_threads) {
  if (num_threads == 0) throw std::invalid_argument("num_threads must be at least 1");
  state_ = std::make_unique<State>(num_threads);
  State::Registry& all = State::registry();
  std::lock_guard lock(all.mutex);
  all.pools.reserve(all.pools.size() + 1);
  state_->start_workers();
  all.pools.push_back(state_.get());
}

ThreadPool::~ThreadPool() {
  {
    State::Registry& all = State::registry();
    std::lock_guard lock(all.mutex);
    std::erase(all.pools, state_.get());
  }
  // After a fork the handles name threads that do not exist here: they can be neither joined nor destroyed.
  if (!state_->workers_lost) state_->stop_workers();
}

std::size_t ThreadPool::num_threads() const {
  return state_->num_threads;
}

void ThreadPool::run_task(Task task, void* argument) {
  State& state = *state_;
  std::lock_guard region(state.region);
  if (state.num_threads == 1) {
    DefaultFloatingPoint guard;
    task(argument, 0);
    return;
  }
  if (state.workers_lost) state.start_workers();  // the lost handles are left behind on purpose
  region_thread = 0;
  state.processors[0].number.store(current_processor(), std::memory_order_relaxed);
  state.task = task;
  state.argument = argument;
  state.unfinished.store(static_cast<std::uint32_t>(state.num_threads - 1), std::memory_order_relaxed);
  state.epoch.fetch_add(1, std::memory_order_release);
  state.epoch.notify_all();
  {
    DefaultFloatingPoint guard;
    task(argument, 0);
  }
  for (std::uint32_t left; (left = state.unfinished.load(std::memory_order_acquire)) != 0;) {
    wait_for_change(state.unfinished, left, state.may_spin(0));
  }
}

void ThreadPool::barrier() {
  State& state = *state_;
  if (state.num_threads == 1) return;
  const std::uint32_t phase = state.phase.load(std::memory_order_acquire);
  if (state.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == state.num_threads) {
    state.arrived.store(0, std::memory_order_relaxed);
    state.phase.fetch_add(1, std::memory_order_release);
    state.phase.notify_all();
  } else {
    wait_for_change(state.phase, phase, state.may_spin(region_thread));
  }
}

std::uint32_t ThreadPool::begin_division(std::size_t thread) {
  return ++state_->shares[thread].division;
}

std::size_t ThreadPool::take_piece(std::size_t owner, std::uint32_t division, std::size_t num_pieces) {
  std::atomic<std::uint64_t>& taken = state_->shares[owner].taken;
  std::uint64_t seen = taken.load(std::memory_order_relaxed);
  while (true) {
    const std::size_t next = seen >> 32 == division ? seen & 0xffffffff : 0;
    if (next >= num_pieces) return num_pieces;
    const std::uint64_t later = std::uint64_t{division} << 32 | (next + 1);
    if (taken.compare_exchange_weak(seen, later, std::memory_order_relaxed)) return next;
  }
}

}  // namespace foreword
