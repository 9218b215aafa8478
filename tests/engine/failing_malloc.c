/* To be preloaded: lets requests for memory fail, here and there, in every thread but the first. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static _Atomic uint64_t state;
static _Atomic uint32_t rate; /* of 2^32 requests */
static _Atomic size_t least;
static _Atomic uint64_t num_failed;

/* From now on let so many of 2^32 requests for at least `bytes` fail; 0: none. Returns how many have failed so far. */
uint64_t let_fail(uint32_t of_all, size_t bytes, uint64_t seed) {
  least = bytes;
  state = seed;
  rate = of_all;
  return num_failed;
}

static int fails(size_t bytes) {
  const uint32_t of_all = rate;
  if (of_all == 0 || bytes < least || syscall(SYS_gettid) == getpid()) return 0;
  uint64_t drawn = atomic_fetch_add(&state, 0x9E3779B97F4A7C15ull); /* splitmix64 */
  drawn = (drawn ^ (drawn >> 30)) * 0xBF58476D1CE4E5B9ull;
  drawn = (drawn ^ (drawn >> 27)) * 0x94D049BB133111EBull;
  if ((uint32_t)(drawn ^ (drawn >> 31)) >= of_all) return 0;
  num_failed++;
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t bytes) { return fails(bytes) ? NULL : __libc_malloc(bytes); }

void* calloc(size_t count, size_t bytes) { return fails(count * bytes) ? NULL : __libc_calloc(count, bytes); }

void* realloc(void* held, size_t bytes) { return fails(bytes) ? NULL : __libc_realloc(held, bytes); }

void* aligned_alloc(size_t alignment, size_t bytes) { return fails(bytes) ? NULL : __libc_memalign(alignment, bytes); }

void* mmap(void* at, size_t bytes, int access, int flags, int file, off_t from) {
  return fails(bytes) ? MAP_FAILED : (void*)syscall(SYS_mmap, at, bytes, access, flags, file, from);
}
