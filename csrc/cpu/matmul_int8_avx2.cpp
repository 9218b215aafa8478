// 4-bit and 8-bit weights times activations rounded to int8: 16 outputs by up to 4 rows in registers.
//
// 4 bits: 8 steps of unsigned x signed products of pairs are added in int16 without overflow (15 * 127 * 2 * 8 < 32768)
// and widened once per group. 8 bits: |w| times x with w's sign, widened at each step. Integer sums are exact in any
// order.
#include "tile_product_avx2.h"

namespace foreword::avx2 {
namespace {

constexpr std::size_t kSteps = 8;
constexpr std::size_t kRunGroups = 24;  // of unpacked weights in the first-level cache: 15 KB; whole Q4_K blocks

__m256i load_codes(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

__m256 load_halves(const std::uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

__m256 load_bytes(const std::uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

__m256i broadcast_four(const std::uint8_t* p) {
  std::int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return _mm256_set1_epi32(four);
}

__m256 broadcast_float(const std::uint8_t* p) {
  float value;
  __builtin_memcpy(&value, p, sizeof value);
  return _mm256_set1_ps(value);
}

// Keeps the compiler from gathering the products of several steps before adding them: it would run out of registers.
void pin(__m256i& x) {
  asm("" : "+x"(x));
}

__m256i nibbles(const std::uint8_t* group, std::size_t step, std::size_t half) {
  const __m256i bytes = load_codes(group + (step % 4 * 2 + half) * 32);
  const __m256i mask = _mm256_set1_epi8(15);
  return _mm256_and_si256(step < 4 ? bytes : _mm256_srli_epi16(bytes, 4), mask);
}

// Weights of a few rows come from memory, each once: asks for those this far ahead, also over the ends of pages and
// tiles, where the hardware's prefetching stops. Beyond the last it asks for nothing that could fault.
constexpr std::size_t kAhead = 1024;

template <std::size_t kBytes>
inline void prefetch_ahead(const std::uint8_t* group) {
#pragma GCC unroll 16
  for (std::size_t line = 0; line < kBytes; line += 64) _mm_prefetch(group + kAhead + line, _MM_HINT_T0);
}

// Cursors over the groups of a tile: codes of a step, scale and minimum of 8 outputs. begin() comes before, next()
// after each group.
struct Q4_1 {
  const std::uint8_t* group;
  Q4_1(const std::uint8_t* tile, std::size_t g) : group(tile + g * kQ4_1Bytes) {}
  void begin() {}
  __m256i codes(std::size_t step, std::size_t half) const { return nibbles(group, step, half); }
  __m256 scale(std::size_t half) const { return load_halves(group + kNibbleBytes + half * 16); }
  __m256 minimum(std::size_t half) const { return load_halves(group + kNibbleBytes + kHalfRow + half * 16); }
  void prefetch() const { prefetch_ahead<kQ4_1Bytes>(group); }
  void next() { group += kQ4_1Bytes; }
};

struct Q4_0 {
  const std::uint8_t* group;
  Q4_0(const std::uint8_t* tile, std::size_t g) : group(tile + g * kQ4_0Bytes) {}
  void begin() {}
  __m256i codes(std::size_t step, std::size_t half) const { return nibbles(group, step, half); }
  __m256 scale(std::size_t half) const { return load_halves(group + kNibbleBytes + half * 16); }
  __m256 minimum(std::size_t half) const { return _mm256_mul_ps(_mm256_set1_ps(-8.0f), scale(half)); }
  void prefetch() const { prefetch_ahead<kQ4_0Bytes>(group); }
  void next() { group += kQ4_0Bytes; }
};

struct Q4_K {
  const std::uint8_t* group;
  __m256 d[2], dmin[2];
  std::size_t left = 0;                          // groups of this block still to come
  Q4_K(const std::uint8_t* tile, std::size_t g)  // g is the first of a block
      : group(tile + g / kSuperGroups * (kQ4_KHead + kSuperGroups * kQ4_KBytes)) {}
  void begin() {
    if (left > 0) return;
    for (std::size_t half = 0; half < 2; ++half) {
      d[half] = load_halves(group + half * 16);
      dmin[half] = _mm256_xor_ps(load_halves(group + kHalfRow + half * 16), _mm256_set1_ps(-0.0f));
    }
    group += kQ4_KHead;
    left = kSuperGroups;
  }
  __m256i codes(std::size_t step, std::size_t half) const { return nibbles(group, step, half); }
  __m256 scale(std::size_t half) const { return _mm256_mul_ps(d[half], load_bytes(group + kNibbleBytes + half * 8)); }
  __m256 minimum(std::size_t half) const {
    return _mm256_mul_ps(dmin[half], load_bytes(group + kNibbleBytes + kTileOutputs + half * 8));
  }
  void prefetch() const { prefetch_ahead<kQ4_KBytes>(group); }
  void next() {
    group += kQ4_KBytes;
    --left;
  }
};

// Groups unpacked to one byte a code and f32 scales, when several blocks of rows pass over them.
struct Unpacked {
  static constexpr std::size_t kBytes = kTileOutputs * (kGroup + 2 * sizeof(float));
  const std::uint8_t* group;
  void begin() {}
  __m256i codes(std::size_t step, std::size_t half) const { return load_codes(group + (step * 2 + half) * 32); }
  __m256 scale(std::size_t half) const { return load_floats(kTileOutputs * kGroup + half * 32); }
  __m256 minimum(std::size_t half) const { return load_floats(kTileOutputs * (kGroup + sizeof(float)) + half * 32); }
  void prefetch() const {}
  void next() { group += kBytes; }
  __m256 load_floats(std::size_t offset) const { return _mm256_castsi256_ps(load_codes(group + offset)); }
};

void store_codes(std::uint8_t* p, __m256i x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
}

template <class Packed>
void unpack(Packed weights, std::size_t num_groups, std::uint8_t* out) {
  for (std::size_t g = 0; g < num_groups; ++g, out += Unpacked::kBytes) {
    weights.begin();
    for (std::size_t half = 0; half < 2; ++half) {
      for (std::size_t step = 0; step < kSteps; ++step)
        store_codes(out + (step * 2 + half) * 32, weights.codes(step, half));
      store_codes(out + kTileOutputs * kGroup + half * 32, _mm256_castps_si256(weights.scale(half)));
      store_codes(out + kTileOutputs * (kGroup + sizeof(float)) + half * 32,
                  _mm256_castps_si256(weights.minimum(half)));
    }
    weights.next();
  }
}

// Adds num_groups groups of M rows to acc [M][16].
template <std::size_t M, class Weights>
void add_groups_4bit(Weights weights, const std::uint8_t* record, std::size_t num_groups, float* acc) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 total[M][2];
  for (std::size_t r = 0; r < M; ++r) {
    total[r][0] = _mm256_load_ps(acc + r * kTileOutputs);
    total[r][1] = _mm256_load_ps(acc + r * kTileOutputs + kLanes);
  }
  for (std::size_t g = 0; g < num_groups; ++g, record += M * kInt8RecordBytes) {
    weights.begin();
    weights.prefetch();
    __m256i sum[M][2];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kSteps; ++i) {
      const std::size_t step = i / 2 + i % 2 * 4;  // the two steps that share bytes follow one another
      const __m256i low = weights.codes(step, 0), high = weights.codes(step, 1);
#pragma GCC unroll 4
      for (std::size_t r = 0; r < M; ++r) {
        const __m256i x = broadcast_four(record + r * kGroup + step * 4);
        const __m256i a = _mm256_maddubs_epi16(low, x), b = _mm256_maddubs_epi16(high, x);
        sum[r][0] = i == 0 ? a : _mm256_add_epi16(sum[r][0], a);
        sum[r][1] = i == 0 ? b : _mm256_add_epi16(sum[r][1], b);
        pin(sum[r][0]);
        pin(sum[r][1]);
      }
    }
    const std::uint8_t* scales = record + M * kGroup;
#pragma GCC unroll 2
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256 scale = weights.scale(half), minimum = weights.minimum(half);
#pragma GCC unroll 4
      for (std::size_t r = 0; r < M; ++r) {
        const __m256 exact = _mm256_cvtepi32_ps(_mm256_madd_epi16(sum[r][half], ones));
        total[r][half] = _mm256_fmadd_ps(exact, _mm256_mul_ps(scale, broadcast_float(scales + r * 4)), total[r][half]);
        total[r][half] = _mm256_fmadd_ps(minimum, broadcast_float(scales + (M + r) * 4), total[r][half]);
      }
    }
    weights.next();
  }
  for (std::size_t r = 0; r < M; ++r) {
    _mm256_store_ps(acc + r * kTileOutputs, total[r][0]);
    _mm256_store_ps(acc + r * kTileOutputs + kLanes, total[r][1]);
  }
}

template <std::size_t M>
void add_groups_8bit(const std::uint8_t* group, const std::uint8_t* record, std::size_t num_groups, float* acc) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (std::size_t g = 0; g < num_groups; ++g, group += kQ8_0Bytes, record += M * kInt8RecordBytes) {
    __m256i sum[M][2];
#pragma GCC unroll 8
    for (std::size_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 2
      for (std::size_t half = 0; half < 2; ++half) {
        const __m256i w = load_codes(group + (step * 2 + half) * 32), size = _mm256_abs_epi8(w);
#pragma GCC unroll 4
        for (std::size_t r = 0; r < M; ++r) {
          const __m256i x = broadcast_four(record + r * kGroup + step * 4);
          const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w));
          const __m256i fours = _mm256_madd_epi16(pairs, ones);
          sum[r][half] = step == 0 ? fours : _mm256_add_epi32(sum[r][half], fours);
          pin(sum[r][half]);
        }
      }
    }
    const std::uint8_t* scales = record + M * kGroup;
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256 scale = load_halves(group + 2 * kNibbleBytes + half * 16);
#pragma GCC unroll 4
      for (std::size_t r = 0; r < M; ++r) {
        float* total = acc + r * kTileOutputs + half * kLanes;
        const __m256 factor = _mm256_mul_ps(scale, broadcast_float(scales + r * 4));
        _mm256_store_ps(total, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][half]), factor, _mm256_load_ps(total)));
      }
    }
  }
}

// Calls body(count of rows as a constant, activations of the block from group g on, its sums) for each block of rows.
template <class Body>
void for_each_block(const ActivationView& rows, RowRange range, std::size_t g, float* acc, Body body) {
  for (std::size_t done = 0; done < range.count; done += kInt8Rows) {
    const std::size_t first = range.first + done, m = smaller(kInt8Rows, range.count - done);
    body(m, int8_block(rows, first) + g * m * kInt8RecordBytes, acc + done * kTileOutputs);
  }
}

struct Int8Format {
  static constexpr std::size_t kRows = kInt8Rows;
  static constexpr std::size_t kRun = kRunGroups * kGroup;
  static std::size_t row_bytes(std::size_t cols) { return cols / kGroup * kInt8RecordBytes; }
};

template <class Weights>
void add_rows_4bit(std::size_t m, Weights weights, const std::uint8_t* record, std::size_t num_groups, float* acc) {
  if (m == 4) return add_groups_4bit<4>(weights, record, num_groups, acc);
  if (m == 3) return add_groups_4bit<3>(weights, record, num_groups, acc);
  if (m == 2) return add_groups_4bit<2>(weights, record, num_groups, acc);
  add_groups_4bit<1>(weights, record, num_groups, acc);
}

template <class Packed>
struct Format4Bit : Int8Format {
  static void accumulate(const std::uint8_t* tile, std::size_t k, std::size_t n, const ActivationView& rows,
                         RowRange range, float* acc) {
    const std::size_t g = k / kGroup, num_groups = n / kGroup;
    const Packed packed(tile, g);
    if (range.count <= kInt8Rows) {
      return for_each_block(rows, range, g, acc, [&](std::size_t m, const std::uint8_t* record, float* sums) {
        add_rows_4bit(m, packed, record, num_groups, sums);
      });
    }
    alignas(64) std::uint8_t codes[kRunGroups * Unpacked::kBytes];
    unpack(packed, num_groups, codes);
    for_each_block(rows, range, g, acc, [&](std::size_t m, const std::uint8_t* record, float* sums) {
      add_rows_4bit(m, Unpacked{codes}, record, num_groups, sums);
    });
  }
};

struct Format8Bit : Int8Format {
  static void accumulate(const std::uint8_t* tile, std::size_t k, std::size_t n, const ActivationView& rows,
                         RowRange range, float* acc) {
    const std::size_t g = k / kGroup, num_groups = n / kGroup;
    const std::uint8_t* group = tile + g * kQ8_0Bytes;
    for_each_block(rows, range, g, acc, [&](std::size_t m, const std::uint8_t* record, float* sums) {
      if (m == 4) return add_groups_8bit<4>(group, record, num_groups, sums);
      if (m == 3) return add_groups_8bit<3>(group, record, num_groups, sums);
      if (m == 2) return add_groups_8bit<2>(group, record, num_groups, sums);
      add_groups_8bit<1>(group, record, num_groups, sums);
    });
  }
};

}  // namespace

void product_int8(const TileView& weights, std::size_t begin, std::size_t end, const ActivationView& rows,
                  const OutputView& out) {
  if (weights.format == SourceFormat::kQ4_0) return product<Format4Bit<Q4_0>>(weights, begin, end, rows, out);
  if (weights.format == SourceFormat::kQ4_1) return product<Format4Bit<Q4_1>>(weights, begin, end, rows, out);
  if (weights.format == SourceFormat::kQ4_K) return product<Format4Bit<Q4_K>>(weights, begin, end, rows, out);
  product<Format8Bit>(weights, begin, end, rows, out);
}

}  // namespace foreword::avx2
