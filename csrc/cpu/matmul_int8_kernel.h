// 4-bit and 8-bit weights times activations rounded to int8: 16 outputs by up to 4 rows in registers. Written once for
// every instruction set; `Simd` is one of simd_products_*.h, which says how 8 outputs by 4 inputs are multiplied.
// Integer sums are exact in any order. Included from the one .cpp of an instruction set.
#pragma once

#include "tile_product.h"

namespace foreword {
namespace {

constexpr std::size_t kSteps = 8;
constexpr std::size_t kRunGroups = 24;  // of unpacked weights in the first-level cache: 15 KB; whole Q4_K blocks

// Codes of 8 outputs and 4 inputs.
template <class Simd>
typename Simd::Codes nibbles(const std::uint8_t* group, std::size_t step, std::size_t half) {
  const auto bytes = Simd::load_codes(group + (step % 4 * 2 + half) * 32);
  return step < 4 ? Simd::low_nibbles(bytes) : Simd::high_nibbles(bytes);
}

// Cursors over the groups of a tile: codes of a step, scale and minimum of 8 outputs. begin() comes before, next()
// after each group.
template <class Simd>
struct Q4_1 {
  using Codes = typename Simd::Codes;
  using Float = typename Simd::Float;
  static constexpr std::size_t kPairGroups = 3;
  const std::uint8_t* group;
  Q4_1(const std::uint8_t* tile, std::size_t g) : group(tile + g * kQ4_1Bytes) {}
  void begin() {}
  Codes codes(std::size_t step, std::size_t half) const { return nibbles<Simd>(group, step, half); }
  Float scale(std::size_t half) const { return Simd::load_halves(group + kNibbleBytes + half * 16); }
  Float minimum(std::size_t half) const { return Simd::load_halves(group + kNibbleBytes + kHalfRow + half * 16); }
  void ask_ahead() { prefetch<kQ4_1Bytes>(group + kAhead); }
  void next() { group += kQ4_1Bytes; }
};

template <class Simd>
struct Q4_0 {
  using Codes = typename Simd::Codes;
  using Float = typename Simd::Float;
  static constexpr std::size_t kPairGroups = 3;
  const std::uint8_t* group;
  Q4_0(const std::uint8_t* tile, std::size_t g) : group(tile + g * kQ4_0Bytes) {}
  void begin() {}
  Codes codes(std::size_t step, std::size_t half) const { return nibbles<Simd>(group, step, half); }
  Float scale(std::size_t half) const { return Simd::load_halves(group + kNibbleBytes + half * 16); }
  Float minimum(std::size_t half) const { return Simd::set(-8.0f) * scale(half); }
  void ask_ahead() { prefetch<kQ4_0Bytes>(group + kAhead); }
  void next() { group += kQ4_0Bytes; }
};

template <class Simd>
struct Q4_K {
  using Codes = typename Simd::Codes;
  using Float = typename Simd::Float;
  static constexpr std::size_t kPairGroups = kSuperGroups;
  const std::uint8_t* group;
  Float d[2], dmin[2];
  std::size_t left = 0;                          // groups of this block still to come
  Q4_K(const std::uint8_t* tile, std::size_t g)  // g is the first of a block
      : group(tile + g / kSuperGroups * (kQ4_KHead + kSuperGroups * kQ4_KBytes)) {}
  void begin() {
    if (left > 0) return;
    for (std::size_t half = 0; half < 2; ++half) {
      d[half] = Simd::load_halves(group + half * 16);
      dmin[half] = Simd::negate(Simd::load_halves(group + kHalfRow + half * 16));
    }
    group += kQ4_KHead;
    left = kSuperGroups;
  }
  Codes codes(std::size_t step, std::size_t half) const { return nibbles<Simd>(group, step, half); }
  Float scale(std::size_t half) const { return d[half] * Simd::load_bytes(group + kNibbleBytes + half * 8); }
  Float minimum(std::size_t half) const {
    return dmin[half] * Simd::load_bytes(group + kNibbleBytes + kTileOutputs + half * 8);
  }
  void ask_ahead() { prefetch<kQ4_KBytes>(group + kAhead); }
  void next() {
    group += kQ4_KBytes;
    --left;
  }
};

// Groups unpacked to one byte a code and f32 scales, when several blocks of rows pass over them. While the first two
// blocks do, packed weights are asked for, from `ahead` on: those that are unpacked next, which would come from memory
// with nothing to do meanwhile. `ahead` null: nothing is.
template <class Simd>
struct Unpacked {
  using Codes = typename Simd::Codes;
  using Float = typename Simd::Float;
  static constexpr std::size_t kBytes = kTileOutputs * (kGroup + 2 * sizeof(float));
  static constexpr std::size_t kAskedBytes = 192;  // a group: twice that is more than a packed one has
  const std::uint8_t* group;
  const std::uint8_t* ahead;
  void begin() {}
  Codes codes(std::size_t step, std::size_t half) const { return Simd::load_codes(group + (step * 2 + half) * 32); }
  Float scale(std::size_t half) const { return Simd::load_floats(group + kTileOutputs * kGroup + half * 32); }
  Float minimum(std::size_t half) const {
    return Simd::load_floats(group + kTileOutputs * (kGroup + sizeof(float)) + half * 32);
  }
  void ask_ahead() {
    if (ahead == nullptr) return;
    prefetch<kAskedBytes>(ahead);
    ahead += kAskedBytes;
  }
  void next() { group += kBytes; }
};

// Returns where the packed groups behind these begin.
template <class Simd, class Packed>
const std::uint8_t* unpack(Packed weights, std::size_t num_groups, std::uint8_t* out) {
  for (std::size_t g = 0; g < num_groups; ++g, out += Unpacked<Simd>::kBytes) {
    weights.begin();
    for (std::size_t half = 0; half < 2; ++half) {
      for (std::size_t step = 0; step < kSteps; ++step)
        Simd::store_codes(out + (step * 2 + half) * 32, weights.codes(step, half));
      Simd::store_floats(out + kTileOutputs * kGroup + half * 32, weights.scale(half));
      Simd::store_floats(out + kTileOutputs * (kGroup + sizeof(float)) + half * 32, weights.minimum(half));
    }
    weights.next();
  }
  return weights.group;
}

// Adds num_groups groups of M rows to acc [M][16]. A function of its own: put into the caller's, whose frame is large,
// gcc keeps the sums in memory.
template <class Simd, std::size_t M, class Weights>
[[gnu::noinline]] void add_groups_4bit(Weights weights, const std::uint8_t* record, std::size_t num_groups,
                                       float* acc) {
  typename Simd::Float total[M][2];
  for (std::size_t r = 0; r < M; ++r) {
    total[r][0] = Simd::load(acc + r * kTileOutputs);
    total[r][1] = Simd::load(acc + r * kTileOutputs + Simd::kLanes);
  }
  for (std::size_t g = 0; g < num_groups; ++g, record += M * kInt8RecordBytes) {
    weights.begin();
    weights.ask_ahead();
    typename Simd::NibbleSum sum[M][2];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kSteps; ++i) {
      const std::size_t step = i / 2 + i % 2 * 4;  // the two steps that share bytes follow one another
      const auto low = weights.codes(step, 0), high = weights.codes(step, 1);
#pragma GCC unroll 4
      for (std::size_t r = 0; r < M; ++r) {
        Simd::add_nibbles(sum[r], i == 0, low, high, Simd::set_four(record + r * kGroup + step * 4));
      }
    }
    const std::uint8_t* scales = record + M * kGroup;
#pragma GCC unroll 2
    for (std::size_t half = 0; half < 2; ++half) {
      const auto scale = weights.scale(half), minimum = weights.minimum(half);
#pragma GCC unroll 4
      for (std::size_t r = 0; r < M; ++r) {
        const auto exact = Simd::nibble_floats(sum[r][half]);
        total[r][half] = Simd::multiply_add(exact, scale * Simd::set_float(scales + r * 4), total[r][half]);
        total[r][half] = Simd::multiply_add(minimum, Simd::set_float(scales + (M + r) * 4), total[r][half]);
      }
    }
    weights.next();
  }
  for (std::size_t r = 0; r < M; ++r) {
    Simd::store(acc + r * kTileOutputs, total[r][0]);
    Simd::store(acc + r * kTileOutputs + Simd::kLanes, total[r][1]);
  }
}

// Adds num_groups groups of M rows to acc [M][16]; `ahead`: the groups come from memory.
template <class Simd, std::size_t M>
[[gnu::noinline]] void add_groups_8bit(const std::uint8_t* group, bool ahead, const std::uint8_t* record,
                                       std::size_t num_groups, float* acc) {
  typename Simd::Float total[M][2];
  for (std::size_t r = 0; r < M; ++r) {
    total[r][0] = Simd::load(acc + r * kTileOutputs);
    total[r][1] = Simd::load(acc + r * kTileOutputs + Simd::kLanes);
  }
  for (std::size_t g = 0; g < num_groups; ++g, group += kQ8_0Bytes, record += M * kInt8RecordBytes) {
    if (ahead) prefetch<kQ8_0Bytes>(group + kAhead);
    typename Simd::ByteSum sum[M][2];
#pragma GCC unroll 8
    for (std::size_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 2
      for (std::size_t half = 0; half < 2; ++half) {
        const auto w = Simd::byte_codes(group + (step * 2 + half) * 32);
#pragma GCC unroll 4
        for (std::size_t r = 0; r < M; ++r) {
          const auto x = Simd::set_four(record + r * kGroup + step * 4);
          Simd::add_bytes(sum[r][half], step == 0, w, x);
        }
      }
    }
    const std::uint8_t* scales = record + M * kGroup;
#pragma GCC unroll 2
    for (std::size_t half = 0; half < 2; ++half) {
      const auto scale = Simd::load_halves(group + 2 * kNibbleBytes + half * 16);
#pragma GCC unroll 4
      for (std::size_t r = 0; r < M; ++r) {
        const auto factor = scale * Simd::set_float(scales + r * 4);
        total[r][half] = Simd::multiply_add(Simd::byte_floats(sum[r][half]), factor, total[r][half]);
      }
    }
  }
  for (std::size_t r = 0; r < M; ++r) {
    Simd::store(acc + r * kTileOutputs, total[r][0]);
    Simd::store(acc + r * kTileOutputs + Simd::kLanes, total[r][1]);
  }
}

// Calls body(number of rows, activations of the block from group g on, its sums, rows done) for each block of rows.
template <class Body>
void for_each_block(const ActivationView& rows, RowRange range, std::size_t g, float* acc, Body body) {
  for (std::size_t done = 0; done < range.count; done += kInt8Rows) {
    const std::size_t first = range.first + done, m = smaller(kInt8Rows, range.count - done);
    body(m, int8_block(rows, first) + g * m * kInt8RecordBytes, acc + done * kTileOutputs, done);
  }
}

struct Int8Format {
  static constexpr std::size_t kRows = kInt8Rows;
  static constexpr std::size_t kRun = kRunGroups * kGroup;
  static std::size_t row_bytes(std::size_t cols) { return cols / kGroup * kInt8RecordBytes; }
};

template <class Simd, class Weights>
void add_rows_4bit(std::size_t m, Weights weights, const std::uint8_t* record, std::size_t num_groups, float* acc) {
  if (m == 4) return add_groups_4bit<Simd, 4>(weights, record, num_groups, acc);
  if (m == 3) return add_groups_4bit<Simd, 3>(weights, record, num_groups, acc);
  if (m == 2) return add_groups_4bit<Simd, 2>(weights, record, num_groups, acc);
  add_groups_4bit<Simd, 1>(weights, record, num_groups, acc);
}

template <class Simd, class Packed>
struct Format4Bit : Int8Format {
  static constexpr std::size_t kPairRun = Packed::kPairGroups * kGroup;
  static void accumulate(const std::uint8_t* tile, std::size_t k, std::size_t n, const ActivationView& rows,
                         RowRange range, float* acc) {
    const std::size_t g = k / kGroup, num_groups = n / kGroup;
    const Packed packed(tile, g);
    if (range.count <= kInt8Rows) {
      const std::uint8_t* const record = int8_block(rows, range.first) + g * range.count * kInt8RecordBytes;
      return add_rows_4bit<Simd>(range.count, packed, record, num_groups, acc);
    }
    alignas(64) std::uint8_t codes[kRunGroups * Unpacked<Simd>::kBytes];
    const std::uint8_t* const behind = unpack<Simd>(packed, num_groups, codes);
    for_each_block(rows, range, g, acc, [&](std::size_t m, const std::uint8_t* record, float* sums, std::size_t done) {
      const std::size_t asked = done / kInt8Rows * num_groups * Unpacked<Simd>::kAskedBytes;
      const std::uint8_t* const ahead = done < 2 * kInt8Rows ? behind + asked : nullptr;
      add_rows_4bit<Simd>(m, Unpacked<Simd>{codes, ahead}, record, num_groups, sums);
    });
  }
};

template <class Simd>
void add_rows_8bit(std::size_t m, const std::uint8_t* group, bool ahead, const std::uint8_t* record,
                   std::size_t num_groups, float* acc) {
  if (m == 4) return add_groups_8bit<Simd, 4>(group, ahead, record, num_groups, acc);
  if (m == 3) return add_groups_8bit<Simd, 3>(group, ahead, record, num_groups, acc);
  if (m == 2) return add_groups_8bit<Simd, 2>(group, ahead, record, num_groups, acc);
  add_groups_8bit<Simd, 1>(group, ahead, record, num_groups, acc);
}

template <class Simd>
struct Format8Bit : Int8Format {
  static constexpr std::size_t kPairRun = 2 * kGroup;
  static void accumulate(const std::uint8_t* tile, std::size_t k, std::size_t n, const ActivationView& rows,
                         RowRange range, float* acc) {
    const std::size_t g = k / kGroup, num_groups = n / kGroup;
    const std::uint8_t* group = tile + g * kQ8_0Bytes;
    if (range.count <= kInt8Rows) {
      const std::uint8_t* const record = int8_block(rows, range.first) + g * range.count * kInt8RecordBytes;
      return add_rows_8bit<Simd>(range.count, group, true, record, num_groups, acc);
    }
    for_each_block(rows, range, g, acc, [&](std::size_t m, const std::uint8_t* record, float* sums, std::size_t done) {
      add_rows_8bit<Simd>(m, group, done == 0, record, num_groups, sums);
    });
  }
};

template <class Simd>
void int8_product(const TileView& weights, TileRange tiles, const ActivationView& rows, const OutputView& out) {
  if (weights.format == SourceFormat::kQ4_0) {
    product<Simd, Format4Bit<Simd, Q4_0<Simd>>>(weights, tiles, rows, out);
  } else if (weights.format == SourceFormat::kQ4_1) {
    product<Simd, Format4Bit<Simd, Q4_1<Simd>>>(weights, tiles, rows, out);
  } else if (weights.format == SourceFormat::kQ4_K) {
    product<Simd, Format4Bit<Simd, Q4_K<Simd>>>(weights, tiles, rows, out);
  } else {
    product<Simd, Format8Bit<Simd>>(weights, tiles, rows, out);
  }
}

}  // namespace
}  // namespace foreword
