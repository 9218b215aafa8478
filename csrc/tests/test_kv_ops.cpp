// Rotation and KV writes against double arithmetic; rounding to half precision against every half there is.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "attention_cases.h"
#include "foreword/attention.h"
#include "half.h"

using namespace foreword;
using namespace foreword::test;

namespace {

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const KvDtype dtype : kDtypes) {
    for (const std::size_t dim : {2U, 6U, 8U, 16U, 20U, 64U, 80U, 128U}) {
      all.push_back({3, 1, dim, 16, dtype});
      all.push_back({4, 2, dim, 8, dtype});
      all.push_back({2, 2, dim, 5, dtype});
    }
  }
  return all;
}

constexpr std::size_t kTokens = 11, kBlocks = 9, kPositions = 40;
constexpr std::uint8_t kMark = 0x55;  // what an unwritten byte holds

// Inputs of one call, and its caches as bytes.
struct Call {
  Shape shape;
  std::size_t stride, item, head_bytes;  // bytes of an element; of a head's share of a block
  std::vector<float> qkv, cos_sin, q_norm, k_norm;
  std::vector<std::int32_t> positions, slots;
  std::vector<std::uint8_t> k, v;

  explicit Call(const Shape& shape) : shape(shape) {
    item = shape.dtype == KvDtype::kF32 ? 4 : shape.dtype == KvDtype::kInt8 ? 1 : 2;
    head_bytes = view().head_bytes();
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    stride = (shape.heads + 2 * shape.kv_heads) * shape.dim + 3;
    const auto fill = [&](std::vector<float>& part, std::size_t size) {
      part.resize(size);
      for (float& x : part) x = normal(random);
    };
    fill(qkv, kTokens * stride);
    fill(q_norm, shape.dim);
    fill(k_norm, shape.dim);
    fill(cos_sin, kPositions * shape.dim);
    for (std::size_t t = 0; t < kTokens; ++t) {
      positions.push_back(static_cast<std::int32_t>(random() % kPositions));
      slots.push_back(static_cast<std::int32_t>((t * 4 + 1) % (kBlocks * shape.block)));
    }
    k.assign(kBlocks * shape.kv_heads * head_bytes, kMark);
    v = k;
  }

  KvCacheView view() { return {k.data(), v.data(), shape.dtype, kBlocks, shape.kv_heads, shape.dim, shape.block}; }

  void run(Context& context, bool norms) {
    const float* const q = norms ? q_norm.data() : nullptr;
    const float* const key = norms ? k_norm.data() : nullptr;
    rope_store_kv(context,
                  {qkv.data(), kTokens, stride, shape.heads, positions.data(), cos_sin.data(), kPositions, slots.data(),
                   q, key, 1e-5f},
                  view());
  }

  // Where the head of a slot's block begins, and the bytes of dimension d of its key, of its value, and of its scale.
  std::size_t head(std::size_t slot, std::size_t j) const {
    return (slot / shape.block * shape.kv_heads + j) * head_bytes;
  }
  std::size_t key_at(std::size_t slot, std::size_t j, std::size_t d) const {
    const std::size_t offset = slot % shape.block;
    if (stores_codes(shape.dtype)) return head(slot, j) + ((d / 2 * shape.block + offset) * 2 + d % 2) * item;
    return head(slot, j) + (d * shape.block + offset) * item;
  }
  std::size_t value_at(std::size_t slot, std::size_t j, std::size_t d) const {
    const std::size_t offset = slot % shape.block;
    if (stores_codes(shape.dtype)) return head(slot, j) + ((offset / 2 * shape.dim + d) * 2 + offset % 2) * item;
    return head(slot, j) + (offset * shape.dim + d) * item;
  }
  std::size_t scale_at(std::size_t slot, std::size_t j) const {
    return head(slot, j) + shape.dim * shape.block * item + slot % shape.block * kKvScaleBytes;
  }

  template <class T>
  static T load(const std::vector<std::uint8_t>& cache, std::size_t at) {
    T value;
    std::memcpy(&value, cache.data() + at, sizeof value);
    return value;
  }

  // What is stored at `at`, of the token with this scale.
  float read(const std::vector<std::uint8_t>& cache, std::size_t at, std::size_t scale) const {
    if (shape.dtype == KvDtype::kF32) return load<float>(cache, at);
    if (shape.dtype == KvDtype::kF16) return half_to_float(load<std::uint16_t>(cache, at));
    return static_cast<float>(code(cache, at)) * load<float>(cache, scale);
  }

  int code(const std::vector<std::uint8_t>& cache, std::size_t at) const {
    return shape.dtype == KvDtype::kInt8 ? load<std::int8_t>(cache, at) : load<std::int16_t>(cache, at);
  }
};

// What rounding may do to the values of a head: absolute, and relative to each.
struct Rounding {
  double absolute, relative;
};

template <class T>
Rounding rounding_of(KvDtype dtype, bool is_key, const T* head, std::size_t dim) {
  if (dtype == KvDtype::kF32) return {0, 0};
  if (dtype == KvDtype::kF16) return {0, std::ldexp(1.0, -11)};
  double peak = 0, squares = 0;
  for (std::size_t d = 0; d < dim; ++d) {
    peak = std::max(peak, std::fabs(static_cast<double>(head[d])));
    squares += static_cast<double>(head[d]) * static_cast<double>(head[d]);
  }
  const double step = dtype == KvDtype::kInt8 ? peak / 127 : is_key ? std::sqrt(squares) / 32767 : peak / 8191;
  return {step / 2 * (1 + 1e-4), std::ldexp(1.0, -22)};  // half a step, and the arithmetic of finding it
}

std::vector<double> rotated(const float* head, const std::vector<float>* norm, const float* cos_sin, std::size_t dim) {
  std::vector<double> x(head, head + dim), y(dim);
  if (norm != nullptr) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    for (std::size_t d = 0; d < dim; ++d) {
      x[d] *= (*norm)[d] / std::sqrt(squares / static_cast<double>(dim) + static_cast<double>(1e-5f));
    }
  }
  for (std::size_t d = 0; d < dim / 2; ++d) {
    const double c = cos_sin[d], s = cos_sin[dim / 2 + d], x1 = x[d], x2 = x[dim / 2 + d];
    y[d] = x1 * c - x2 * s;
    y[dim / 2 + d] = x2 * c + x1 * s;
  }
  return y;
}

// The norm's sum errs by up to D u, and so by half of that in the root; a few roundings more. Times the size of the
// terms.
bool is_close(double got, double expected, std::size_t dim, Rounding rounding = {0, 0}) {
  const double unit = std::ldexp(1.0, -24);
  const double size = 40;  // products of normal variates, weights and rotations, at the most
  return std::fabs(got - expected) <=
         (static_cast<double>(dim) / 2 + 8) * unit * size + rounding.absolute + rounding.relative * std::fabs(expected);
}

}  // namespace

TEST(kv_ops, queries_and_keys_are_normed_and_rotated_and_land_in_their_slots) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (const Shape& shape : shapes()) {
      for (const bool norms : {false, true}) {
        Call call(shape);
        const std::vector<float> before = call.qkv;
        call.run(context, norms);
        for (std::size_t t = 0; t < kTokens; ++t) {
          const float* const row = before.data() + t * call.stride;
          const float* const cos_sin = call.cos_sin.data() + static_cast<std::size_t>(call.positions[t]) * shape.dim;
          const std::size_t slot = static_cast<std::size_t>(call.slots[t]);
          for (std::size_t h = 0; h < shape.heads; ++h) {
            const auto expected = rotated(row + h * shape.dim, norms ? &call.q_norm : nullptr, cos_sin, shape.dim);
            for (std::size_t d = 0; d < shape.dim; ++d) {
              CHECK(is_close(call.qkv[t * call.stride + h * shape.dim + d], expected[d], shape.dim));
            }
          }
          for (std::size_t j = 0; j < shape.kv_heads; ++j) {
            const float* const key = row + (shape.heads + j) * shape.dim;
            const float* const value = key + shape.kv_heads * shape.dim;
            const auto expected = rotated(key, norms ? &call.k_norm : nullptr, cos_sin, shape.dim);
            const Rounding of_key = rounding_of(shape.dtype, true, expected.data(), shape.dim);
            const Rounding of_value = rounding_of(shape.dtype, false, value, shape.dim);
            const std::size_t scale = call.scale_at(slot, j);
            for (std::size_t d = 0; d < shape.dim; ++d) {
              CHECK(is_close(call.read(call.k, call.key_at(slot, j, d), scale), expected[d], shape.dim, of_key));
              const float kept = call.read(call.v, call.value_at(slot, j, d), scale);
              if (stores_codes(shape.dtype)) {
                const double error = std::fabs(static_cast<double>(kept) - value[d]);
                CHECK(error <= of_value.absolute + of_value.relative * std::fabs(value[d]));
              } else {
                CHECK(kept == (shape.dtype == KvDtype::kF16 ? half_to_float(float_to_half(value[d])) : value[d]));
              }
            }
          }
          const std::size_t rest = shape.heads * shape.dim;
          CHECK(std::memcmp(call.qkv.data() + t * call.stride + rest, row + rest, (call.stride - rest) * 4) == 0);
        }
      }
    }
  }
}

TEST(kv_ops, nothing_but_the_slots_is_written) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(3, isa);
    for (const Shape& shape : shapes()) {
      Call call(shape);
      call.run(context, true);
      std::vector<bool> k_written(call.k.size()), v_written(call.v.size());
      const auto mark = [](std::vector<bool>& written, std::size_t at, std::size_t size) {
        for (std::size_t i = 0; i < size; ++i) written[at + i] = true;
      };
      for (const std::int32_t written : call.slots) {
        const std::size_t slot = static_cast<std::size_t>(written);
        for (std::size_t j = 0; j < shape.kv_heads; ++j) {
          for (std::size_t d = 0; d < shape.dim; ++d) {
            mark(k_written, call.key_at(slot, j, d), call.item);
            mark(v_written, call.value_at(slot, j, d), call.item);
          }
          if (!stores_codes(shape.dtype)) continue;
          for (std::vector<bool>* part : {&k_written, &v_written}) mark(*part, call.scale_at(slot, j), kKvScaleBytes);
        }
      }
      for (std::size_t i = 0; i < call.k.size(); ++i) {
        CHECK(k_written[i] || call.k[i] == kMark);
        CHECK(v_written[i] || call.v[i] == kMark);
      }
    }
  }
}

TEST(kv_ops, a_token_has_the_same_bits_in_any_batch_and_with_any_number_of_threads) {
  for (const InstructionSet isa : instruction_sets()) {
    Context one(1, isa), many(3, isa);
    for (const Shape& shape : shapes()) {
      Call together(shape), threaded(shape), single(shape);
      together.run(one, true);
      threaded.run(many, true);
      for (std::size_t t = 0; t < kTokens; ++t) {
        rope_store_kv(one,
                      {single.qkv.data() + t * single.stride, 1, single.stride, shape.heads,
                       single.positions.data() + t, single.cos_sin.data(), kPositions, single.slots.data() + t,
                       single.q_norm.data(), single.k_norm.data(), 1e-5f},
                      single.view());
      }
      for (const Call* call : {&threaded, &single}) {
        CHECK(call->k == together.k && call->v == together.v);
        CHECK(std::memcmp(call->qkv.data(), together.qkv.data(), together.qkv.size() * 4) == 0);
      }
    }
  }
}

TEST(kv_ops, extremes_become_codes_by_their_rules) {
  const float huge = 3e38f, tiny = 1e-38f, infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  struct Case {
    float first, second;  // the rest of the head is 0
    float scale;          // of a value's int8 code; NaN: not finite
    int first_code, second_code;
  };
  const Case cases[] = {{127, 63.5f, 1, 127, 64},   {127, 62.5f, 1, 127, 62},  // ties to even
                        {-254, 1, 2, -127, 0},      {huge, -huge, huge / 127, 127, -127},
                        {tiny, 0, 0, 0, 0},         {0, 0, 0, 0, 0},
                        {infinity, 1, nan, 0, 0},   {1, nan, nan, 0, 0},
                        {-infinity, nan, nan, 0, 0}};
  for (const std::size_t dim : {2U, 6U, 8U, 64U}) {
    for (const Case& wanted : cases) {
      for (const InstructionSet isa : instruction_sets()) {
        Context context(1, isa);
        Call call({1, 1, dim, 16, KvDtype::kInt8});
        float* const value = call.qkv.data() + 2 * dim;
        std::fill_n(value, dim, 0.0f);
        value[0] = wanted.first;
        value[dim - 1] = wanted.second;
        call.run(context, false);
        const std::size_t slot = static_cast<std::size_t>(call.slots[0]);
        const float scale = Call::load<float>(call.v, call.scale_at(slot, 0));
        CHECK(std::isnan(wanted.scale) ? std::isnan(scale) : scale == wanted.scale);
        CHECK(call.code(call.v, call.value_at(slot, 0, 0)) == wanted.first_code);
        CHECK(call.code(call.v, call.value_at(slot, 0, dim - 1)) == wanted.second_code);
      }
    }
  }
}

TEST(kv_ops, int16_keys_are_rounded_by_their_length_and_values_by_their_peak) {
  const float huge = 3e38f, nan = std::nanf("");
  struct Case {
    float first, second;         // the rest of the head is 0
    float key_scale;             // NaN: not finite
    int first_code, value_code;  // of the key's first, and of the value's
  };
  const auto root = static_cast<float>(std::sqrt(2.0) * static_cast<double>(huge) / 32767);
  const Case cases[] = {{32767, 0, 1, 32767, 8191},
                        {3 * 8191, 4 * 8191, static_cast<float>(5 * 8191 / 32767.0), 19660, 6143},
                        {-huge, huge, root, -23170, -8191},
                        {1e-38f, 0, 0, 0, 0},
                        {0, 0, 0, 0, 0},
                        {-std::numeric_limits<float>::infinity(), 1, nan, 0, 0}};
  for (const std::size_t dim : {2U, 6U, 8U, 64U}) {
    for (const Case& wanted : cases) {
      for (const InstructionSet isa : instruction_sets()) {
        Context context(1, isa);
        Call call({1, 1, dim, 16, KvDtype::kInt16});
        std::fill_n(call.cos_sin.data(), call.cos_sin.size(), 0.0f);
        for (std::size_t p = 0; p < kPositions; ++p) std::fill_n(call.cos_sin.data() + p * dim, dim / 2, 1.0f);
        for (float* const head : {call.qkv.data() + dim, call.qkv.data() + 2 * dim}) {
          std::fill_n(head, dim, 0.0f);
          head[0] = wanted.first;
          head[dim - 1] = wanted.second;
        }
        call.run(context, false);
        const std::size_t slot = static_cast<std::size_t>(call.slots[0]);
        const float scale = Call::load<float>(call.k, call.scale_at(slot, 0));
        CHECK(std::isnan(wanted.key_scale) ? std::isnan(scale) : scale == wanted.key_scale);
        CHECK(call.code(call.k, call.key_at(slot, 0, 0)) == wanted.first_code);
        CHECK(call.code(call.v, call.value_at(slot, 0, 0)) == wanted.value_code);
      }
    }
  }
}

TEST(kv_ops, codes_have_the_same_bits_with_every_instruction_set) {
  for (const Shape& shape : shapes()) {
    if (!stores_codes(shape.dtype)) continue;
    std::vector<std::uint8_t> keys, values;
    for (const InstructionSet isa : instruction_sets()) {
      Context context(1, isa);
      Call call(shape);
      // Rotations by nothing: of others a product may round otherwise.
      for (std::size_t i = 0; i < call.cos_sin.size(); ++i) call.cos_sin[i] = i % shape.dim < shape.dim / 2 ? 1 : 0;
      call.run(context, false);
      CHECK(keys.empty() || (keys == call.k && values == call.v));
      keys = call.k;
      values = call.v;
    }
  }
}

TEST(kv_ops, halves_round_to_the_nearest_and_ties_to_even) {
  for (std::uint32_t half = 0; half < 0x7c00; ++half) {
    const float value = half_to_float(static_cast<std::uint16_t>(half));
    const float next = half + 1 == 0x7c00 ? 65536.0f : half_to_float(static_cast<std::uint16_t>(half + 1));
    const float middle = value + (next - value) / 2;
    CHECK(float_to_half(value) == half);
    CHECK(float_to_half(-value) == (half | 0x8000U));
    CHECK(float_to_half(middle) == (half % 2 == 0 ? half : half + 1));
    CHECK(float_to_half(std::nextafter(middle, 0.0f)) == half);
    CHECK(float_to_half(std::nextafter(middle, 1e9f)) == half + 1);
  }
  CHECK(half_to_float(0x3c00) == 1.0f && half_to_float(0x0001) == 0x1p-24f && half_to_float(0x7bff) == 65504.0f);
  CHECK(float_to_half(std::numeric_limits<float>::infinity()) == 0x7c00);
  CHECK(std::isinf(half_to_float(0xfc00)) && std::isnan(half_to_float(0x7e00)));
  CHECK(float_to_half(std::numeric_limits<float>::quiet_NaN()) == 0x7e00);
}

TEST(kv_ops, instruction_sets_store_the_same_halves) {
  if (detect_instruction_set() == InstructionSet::kScalar) return;
  std::mt19937 random(2);
  const std::size_t dim = 64, count = 4096;
  std::vector<float> values(count * dim * 3);
  for (float& x : values) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    std::memcpy(&x, &bits, sizeof x);
  }
  std::vector<std::int32_t> positions(count, 0), slots(count);
  for (std::size_t t = 0; t < count; ++t) slots[t] = static_cast<std::int32_t>(t);
  std::vector<float> cos_sin(dim, 0.0f);
  std::vector<std::uint16_t> stored[2];
  for (const bool best : {false, true}) {
    Context context(2, best ? detect_instruction_set() : InstructionSet::kScalar);
    std::vector<float> qkv = values;
    std::vector<std::uint16_t> k(count * dim);
    stored[best].resize(count * dim);
    const KvCacheView view{k.data(), stored[best].data(), KvDtype::kF16, count / 16, 1, dim, 16};
    rope_store_kv(
        context,
        {qkv.data(), count, 3 * dim, 1, positions.data(), cos_sin.data(), 1, slots.data(), nullptr, nullptr, 0}, view);
  }
  CHECK(stored[0] == stored[1]);
}
