// A test program in one header: TEST(suite, name) { CHECK(...); }. Run as `foreword_kernels_test [suite]`.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace foreword::test {

struct Test {
  const char* suite;
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Register {
  Register(const char* suite, const char* name, void (*body)()) { tests().push_back({suite, name, body}); }
};

[[noreturn]] inline void fail(const char* file, int line, const char* text) {
  std::printf("%s:%d: check failed: %s\n", file, line, text);
  std::fflush(stdout);
  std::abort();
}

}  // namespace foreword::test

#define TEST(suite, name)                                                                                \
  static void test_##suite##_##name();                                                                   \
  static const foreword::test::Register register_##suite##_##name{#suite, #name, test_##suite##_##name}; \
  static void test_##suite##_##name()

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) foreword::test::fail(__FILE__, __LINE__, #condition); \
  } while (false)

// For values in loops: prints them with the failure.
#define CHECK_MSG(condition, ...)                           \
  do {                                                      \
    if (!(condition)) {                                     \
      std::printf(__VA_ARGS__);                             \
      std::printf("\n");                                    \
      foreword::test::fail(__FILE__, __LINE__, #condition); \
    }                                                       \
  } while (false)

#define CHECK_THROWS(expression, exception)                                              \
  do {                                                                                   \
    bool thrown = false;                                                                 \
    try {                                                                                \
      (void)(expression);                                                                \
    } catch (const exception&) {                                                         \
      thrown = true;                                                                     \
    }                                                                                    \
    if (!thrown) foreword::test::fail(__FILE__, __LINE__, #expression " did not throw"); \
  } while (false)
