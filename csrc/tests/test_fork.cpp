// A suite of its own: an emulator may not carry a process of several threads through a fork (qemu-user 7.2 aborts).
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "check.h"
#include "foreword/threads.h"

using foreword::ThreadPool;

namespace {

std::size_t sum_of_thread_ids(ThreadPool& pool) {
  std::atomic<std::size_t> sum{0};
  pool.run([&](std::size_t thread) { sum += thread + 1; });
  return sum;
}

}  // namespace

TEST(fork, the_pool_works_in_a_forked_child_and_still_in_the_parent) {
  ThreadPool pool(3);
  CHECK(sum_of_thread_ids(pool) == 6);

  const pid_t child = fork();
  if (child == 0) {
    bool works = sum_of_thread_ids(pool) == 6;
    works = works && sum_of_thread_ids(pool) == 6;
    _exit(works ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);

  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(sum_of_thread_ids(pool) == 6);
}
