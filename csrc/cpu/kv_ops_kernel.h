// Rotation and storage of K and V, written once for every instruction set; `Simd` is its vector type (simd_*.h).
// Included from the one .cpp of an instruction set.
//
// Sum of squares of a head: lanes d % kLanes, each a multiply-add chain ascending in d; lanes then folded in halves.
// Rotation: y1 = x1 * c - (x2 * s) and y2 = x2 * c + (x1 * s), the product in brackets rounded, the rest one
// multiply-add.
#pragma once

#include <cstring>

#include "codes.h"
#include "kv_ops_isa.h"

namespace foreword {
namespace {

// Up to kLanes floats; zero behind them.
template <class Simd>
inline typename Simd::Float load_first(const float* p, std::size_t n) {
  if (n >= Simd::kLanes) return Simd::load(p);
  float lanes[Simd::kLanes] = {};
  for (std::size_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Simd::load(lanes);
}

template <class Simd>
inline void store_first(float* p, std::size_t n, typename Simd::Float x) {
  if (n >= Simd::kLanes) return Simd::store(p, x);
  float lanes[Simd::kLanes];
  Simd::store(lanes, x);
  for (std::size_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// 1 / sqrt(mean(x^2) + eps)
template <class Simd>
inline float inverse_rms(const float* x, std::size_t dim, float eps) {
  auto sums = Simd::set(0.0f);
  for (std::size_t d = 0; d < dim; d += Simd::kLanes) {
    const auto part = load_first<Simd>(x + d, dim - d);
    sums = Simd::multiply_add(part, part, sums);
  }
  return 1.0f / __builtin_sqrtf(Simd::sum(sums) / static_cast<float>(dim) + eps);
}

// out may be x. norm: null or [D].
template <class Simd>
inline void rotate_head(const float* x, const float* norm, float eps, const float* cos_sin, std::size_t dim,
                        float* out) {
  const std::size_t half = dim / 2;
  const auto inverse = Simd::set(norm == nullptr ? 1.0f : inverse_rms<Simd>(x, dim, eps));
  for (std::size_t d = 0; d < half; d += Simd::kLanes) {
    const std::size_t n = half - d;
    auto x1 = load_first<Simd>(x + d, n), x2 = load_first<Simd>(x + half + d, n);
    if (norm != nullptr) {
      x1 = x1 * inverse * load_first<Simd>(norm + d, n);
      x2 = x2 * inverse * load_first<Simd>(norm + half + d, n);
    }
    const auto c = load_first<Simd>(cos_sin + d, n), s = load_first<Simd>(cos_sin + half + d, n);
    store_first<Simd>(out + d, n, Simd::multiply_subtract(x1, c, x2 * s));
    store_first<Simd>(out + half + d, n, Simd::multiply_add(x2, c, x1 * s));
  }
}

// out[d * stride] = x[d], rounded once.
template <class Simd, class T>
inline void store_rounded(const float* x, std::size_t dim, T* out, std::size_t stride) {
  for (std::size_t d = 0; d < dim; d += Simd::kLanes) {
    const std::size_t n = dim - d < Simd::kLanes ? dim - d : Simd::kLanes;
    const auto part = load_first<Simd>(x + d, n);
    if (stride == 1 && n == Simd::kLanes) {
      Simd::store(out + d, part);
      continue;
    }
    T lanes[Simd::kLanes];
    Simd::store(lanes, part);
    for (std::size_t i = 0; i < n; ++i) out[(d + i) * stride] = lanes[i];
  }
}

// By its largest magnitude, which becomes the code `most`.
template <class Simd>
inline CodeScale scale_by_peak(const float* x, std::size_t dim, float most) {
  auto peaks = Simd::set(0.0f), not_finite = Simd::set(0.0f);  // infinity times 0 is NaN, and stays in a sum
  for (std::size_t d = 0; d < dim; d += Simd::kLanes) {
    const auto part = load_first<Simd>(x + d, dim - d);
    peaks = Simd::larger(Simd::larger(part, Simd::set(0.0f) - part), peaks);
    not_finite = not_finite + part * Simd::set(0.0f);
  }
  if (Simd::sum(not_finite) != 0.0f) return {__builtin_nanf(""), 0.0f};
  const float peak = Simd::largest(peaks), inverse = most / peak;
  if (!(inverse <= FLT_MAX)) return {0.0f, 0.0f};
  return {peak / most, inverse};
}

// The code of x[d] to codes[place_of(d)], and the scale to `scale`, which may lie anywhere.
template <class Simd, class Code, class PlaceOf>
inline void store_codes(const float* x, std::size_t dim, CodeScale by, Code* codes, PlaceOf place_of, char* scale) {
  std::memcpy(scale, &by.scale, sizeof by.scale);
  const auto inverse = Simd::set(by.inverse);
  for (std::size_t d = 0; d < dim; d += Simd::kLanes) {
    const std::size_t n = dim - d < Simd::kLanes ? dim - d : Simd::kLanes;
    const auto part = by.inverse == 0.0f ? Simd::set(0.0f) : load_first<Simd>(x + d, n);
    Code lanes[Simd::kLanes];
    Simd::store_codes(lanes, part * inverse);
    for (std::size_t i = 0; i < n; ++i) codes[place_of(d + i)] = lanes[i];
  }
}

// One token's key and value of one KV head, rounded, to their places in block `head` of the caches.
template <class Simd, class T>
inline void store_head(const float* key, const float* value, const KvCacheView& cache, std::size_t head,
                       std::size_t offset) {
  const std::size_t dim = cache.head_dim, block_size = cache.block_size, begin = head * dim * block_size;
  store_rounded<Simd>(key, dim, static_cast<T*>(cache.k) + begin + offset, block_size);
  store_rounded<Simd>(value, dim, static_cast<T*>(cache.v) + begin + offset * dim, 1);
}

// The same as codes, in pairs of dimensions and of tokens.
template <class Simd, class Code>
inline void store_head_codes(const float* key, const float* value, const KvCacheView& cache, std::size_t head,
                             std::size_t offset) {
  const std::size_t dim = cache.head_dim, block_size = cache.block_size;
  char* const keys = static_cast<char*>(cache.k) + head * cache.head_bytes();
  char* const values = static_cast<char*>(cache.v) + head * cache.head_bytes();
  const std::size_t scale = dim * block_size * sizeof(Code) + offset * kKvScaleBytes;
  const CodeScale key_scale =
      sizeof(Code) == 1 ? scale_by_peak<Simd>(key, dim, kMostInt8Code) : scale_by_length(key, dim);
  const auto key_place = [=](std::size_t d) { return (d / 2 * block_size + offset) * 2 + d % 2; };
  const auto value_place = [=](std::size_t d) { return (offset / 2 * dim + d) * 2 + offset % 2; };
  store_codes<Simd>(key, dim, key_scale, reinterpret_cast<Code*>(keys), key_place, keys + scale);
  store_codes<Simd>(value, dim, scale_by_peak<Simd>(value, dim, kMostValueCode<Code>), reinterpret_cast<Code*>(values),
                    value_place, values + scale);
}

template <class Simd, class Store>
void rope_store_heads(const RopeStoreArgs& args, const KvCacheView& cache, std::size_t begin, std::size_t end,
                      float* scratch, Store store) {
  const std::size_t dim = cache.head_dim, block_size = cache.block_size, num_kv_heads = cache.num_kv_heads;
  const std::size_t group = args.num_heads / num_kv_heads;
  for (std::size_t item = begin; item < end; ++item) {
    const std::size_t t = item / num_kv_heads, j = item % num_kv_heads;
    float* const row = args.qkv + t * args.qkv_stride;
    float* const queries = row + j * group * dim;
    const float* const key = row + (args.num_heads + j) * dim;
    const float* const value = key + num_kv_heads * dim;
    const float* const cos_sin = args.cos_sin + static_cast<std::size_t>(args.positions[t]) * dim;
    const std::size_t slot = static_cast<std::size_t>(args.slot_mapping[t]);
    for (std::size_t g = 0; g < group; ++g) {
      rotate_head<Simd>(queries + g * dim, args.q_norm, args.eps, cos_sin, dim, queries + g * dim);
    }
    rotate_head<Simd>(key, args.k_norm, args.eps, cos_sin, dim, scratch);
    store(scratch, value, cache, slot / block_size * num_kv_heads + j, slot % block_size);
  }
}

template <class Simd>
void rope_store(const RopeStoreArgs& args, const KvCacheView& cache, std::size_t begin, std::size_t end,
                float* scratch) {
  switch (cache.dtype) {
    case KvDtype::kF32:
      return rope_store_heads<Simd>(args, cache, begin, end, scratch, store_head<Simd, float>);
    case KvDtype::kF16:
      return rope_store_heads<Simd>(args, cache, begin, end, scratch, store_head<Simd, std::uint16_t>);
    case KvDtype::kInt8:
      return rope_store_heads<Simd>(args, cache, begin, end, scratch, store_head_codes<Simd, std::int8_t>);
    case KvDtype::kInt16:
      return rope_store_heads<Simd>(args, cache, begin, end, scratch, store_head_codes<Simd, std::int16_t>);
  }
}

}  // namespace
}  // namespace foreword
