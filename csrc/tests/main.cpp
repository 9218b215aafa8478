#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  std::size_t num_run = 0;
  for (const foreword::test::Test& test : foreword::test::tests()) {
    if (argc > 1 && std::strcmp(argv[1], test.suite) != 0) continue;
    std::printf("%s: %s\n", test.suite, test.name);
    std::fflush(stdout);
    test.body();
    ++num_run;
  }
  std::printf("%zu tests passed\n", num_run);
  return num_run == 0 ? 1 : 0;
}
