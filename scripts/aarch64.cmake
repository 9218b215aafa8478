# Builds for 64-bit ARM on another machine; ctest then runs the tests under qemu-user (see scripts/test-emulated).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)  # so that qemu needs none of the target's libraries
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
