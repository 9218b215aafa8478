// Digests of what the kernels give for the same numbers on any machine: one line a kernel and instruction set, "scalar"
// or "fastest", the kernel, a digest of its bits. Machines whose lines agree have the same order of sums; see
// scripts/test-emulated. Inputs are made of integers alone, and hold no NaN, whose sign differs between machines.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "foreword/attention.h"
#include "foreword/matrix.h"
#include "foreword/sampling.h"
#include "sources.h"

using namespace foreword;
using namespace foreword::test;

namespace {

class Digest {  // FNV-1a
 public:
  template <class T>
  void add(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (std::size_t i = 0; i < values.size() * sizeof(T); ++i) state_ = (state_ ^ bytes[i]) * 0x100000001b3ULL;
  }
  void print(InstructionSet isa, const std::string& kernel) const {
    const char* const set = isa == InstructionSet::kScalar ? "scalar" : "fastest";
    std::printf("%s %s %016" PRIx64 "\n", set, kernel.c_str(), state_);
  }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

// Bell-shaped, about `size` wide: the sum of four uniform integers, scaled by a power of two and by `size`.
std::vector<float> floats(std::size_t n, std::mt19937& random, float size = 1.0f) {
  std::vector<float> values(n);
  for (float& value : values) {
    std::int32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<std::int32_t>(random() >> 12) - (1 << 19);
    value = static_cast<float>(sum) * 0x1p-19f * size;
  }
  return values;
}

constexpr const char* kFormatNames[] = {"f32", "f16", "bf16", "q4_0", "q4_1", "q4_k", "q8_0"};

void print_products(Context& context) {
  const std::size_t outputs = 37, limit = 19;
  for (std::size_t f = 0; f < std::size(kAllFormats); ++f) {
    for (const RowTransform::Kind kind : {RowTransform::kNone, RowTransform::kRmsNorm, RowTransform::kSwiGlu}) {
      std::mt19937 random(1);
      Digest digest;
      const std::size_t cols = rounds_activations(kAllFormats[f]) ? 1024 : 333;
      const RandomSource weights = random_source(kAllFormats[f], outputs, cols, random);
      const MatrixSource source = weights.source();
      const PackedMatrix matrix({&source, 1}, context);
      const std::vector<float> x = floats(limit * 2 * cols, random), norm = floats(cols, random),
                               bias = floats(outputs, random);
      for (const std::size_t rows : {1U, 2U, 3U, 4U, 5U, 6U, 19U}) {
        std::vector<float> out(rows * outputs);
        linear(context, x.data(), 2 * cols, rows, {kind, norm.data(), 1e-5f}, matrix, bias.data(), false, out.data(),
               outputs);
        digest.add(out);
      }
      static constexpr const char* kKinds[] = {"", " norm", " swiglu"};
      digest.print(context.isa, std::string("product ") + kFormatNames[f] + kKinds[kind]);
    }
  }
}

// One sequence stored by rope_store_kv, then attended to: all of it at once, its last seven tokens, and its last.
void print_attention(Context& context, KvDtype dtype, const char* name, std::size_t dim, std::size_t block) {
  const std::size_t heads = 6, kv_heads = 2, length = 290, width = (heads + 2 * kv_heads) * dim;
  std::mt19937 random(1);
  std::vector<float> qkv = floats(length * width, random), norm = floats(dim, random);
  const std::vector<float> cos_sin = floats(length * dim, random);
  std::vector<std::int32_t> positions(length), blocks((length + block - 1) / block);
  for (std::size_t t = 0; t < length; ++t) positions[t] = static_cast<std::int32_t>(t);
  for (std::size_t b = 0; b < blocks.size(); ++b) blocks[b] = static_cast<std::int32_t>(b);
  KvCacheView cache{nullptr, nullptr, dtype, blocks.size(), kv_heads, dim, block};
  std::vector<std::uint8_t> k(blocks.size() * kv_heads * cache.head_bytes()), v(k.size());
  cache.k = k.data();
  cache.v = v.data();
  rope_store_kv(context,
                {qkv.data(), length, width, heads, positions.data(), cos_sin.data(), length, positions.data(),
                 norm.data(), norm.data(), 1e-5f},
                cache);
  Digest stored, attended;
  stored.add(qkv);
  stored.add(k);
  stored.add(v);
  for (const std::size_t tokens : {length, std::size_t{7}, std::size_t{1}}) {
    std::vector<float> out(tokens * heads * dim);
    const std::int32_t starts[] = {0, static_cast<std::int32_t>(tokens)}, context_len = length;
    paged_attention(context,
                    {qkv.data() + (length - tokens) * width, 1, width, heads, blocks.data(), blocks.size(), starts,
                     &context_len, 0.37f, out.data(), heads * dim},
                    cache);
    attended.add(out);
  }
  const std::string of = std::string(" ") + name + " " + std::to_string(dim) + " " + std::to_string(block);
  stored.print(context.isa, "store" + of);
  attended.print(context.isa, "attention" + of);
}

void print_sampling(Context& context) {
  const std::size_t vocab_size = 1003, rows = 40, best = 7;
  std::mt19937 random(1);
  const std::vector<float> logits = floats(rows * vocab_size, random, 4.0f);
  std::vector<SampleRow> asked;
  for (std::uint32_t r = 0; r < rows; ++r) {
    asked.push_back({r % 8 == 0 ? 0.0f : 1.5f, r % 4 == 1 ? 50 : 0, r % 4 == 2 ? 0.9f : 1.0f, r % 4 == 3 ? 0.02f : 0.0f,
                     7, r, 3 * r});
  }
  std::vector<std::int32_t> tokens(rows), ranks(rows), top_ids(rows * best);
  std::vector<float> chosen(rows), top(rows * best);
  sample(context, logits.data(), rows, vocab_size, asked.data(), tokens.data());
  top_logprobs(context, logits.data(), rows, vocab_size, tokens.data(), best, chosen.data(), ranks.data(),
               top_ids.data(), top.data());
  Digest digest;
  digest.add(tokens);
  digest.add(ranks);
  digest.add(top_ids);
  digest.add(chosen);
  digest.add(top);
  digest.print(context.isa, "sampling");
}

}  // namespace

int main() {
  std::vector<InstructionSet> sets{InstructionSet::kScalar};
  if (detect_instruction_set() != InstructionSet::kScalar) sets.push_back(detect_instruction_set());
  for (const InstructionSet isa : sets) {
    Context context(2, isa);
    print_products(context);
    const std::pair<const char*, KvDtype> dtypes[] = {
        {"f32", KvDtype::kF32}, {"f16", KvDtype::kF16}, {"int8", KvDtype::kInt8}, {"int16", KvDtype::kInt16}};
    for (const std::size_t dim : {20U, 64U}) {
      for (const auto& [name, dtype] : dtypes) {
        for (const std::size_t block : {stores_codes(dtype) ? 6U : 5U, 16U}) {
          print_attention(context, dtype, name, dim, block);
        }
      }
    }
    print_sampling(context);
  }
}
