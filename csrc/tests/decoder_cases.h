// A tiny model, the state of its passes and steps of it, for tests of the decoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "check.h"
#include "foreword/decoder.h"
#include "sources.h"

namespace foreword::test {

inline constexpr std::size_t kVocab = 50, kHidden = 64, kInner = 96, kHeads = 4, kKvHeads = 2, kDim = 16, kLayers = 3;
inline constexpr std::size_t kAttention = kHeads * kDim, kQkv = kAttention + 2 * kKvHeads * kDim;
inline constexpr std::size_t kBlock = 8, kBlocks = 64, kPositions = 300;
inline constexpr float kEps = 1e-5f, kAttentionScale = 0.25f;

struct TestModel {
  std::vector<std::unique_ptr<PackedMatrix>> matrices;
  std::vector<std::vector<float>> vectors;
  std::vector<float> cos_sin;
  DecoderModel model{};

  TestModel(SourceFormat format, bool optional_parts, Context& context, std::mt19937& random) {
    model.embedding = matrix(format, kVocab, kHidden, context, random);
    model.final_norm = vector(kHidden, random);
    model.head = matrix(format, kVocab, kHidden, context, random);
    model.num_heads = kHeads;
    model.num_kv_heads = kKvHeads;
    model.head_dim = kDim;
    model.eps = kEps;
    model.scale = kAttentionScale;
    cos_sin = random_floats(kPositions * kDim, random);
    const auto optional = [&](std::size_t size) { return optional_parts ? vector(size, random) : nullptr; };
    for (std::size_t i = 0; i < kLayers; ++i) {
      DecoderLayer layer{};
      layer.attention_norm = vector(kHidden, random);
      layer.qkv = matrix(format, kQkv, kHidden, context, random);
      layer.qkv_bias = optional(kQkv);
      layer.q_norm = optional(kDim);
      layer.k_norm = optional(kDim);
      layer.output = matrix(format, kHidden, kAttention, context, random);
      layer.output_bias = optional(kHidden);
      layer.mlp_norm = vector(kHidden, random);
      layer.gate_up = matrix(format, 2 * kInner, kHidden, context, random);
      layer.gate_up_bias = optional(2 * kInner);
      layer.down = matrix(format, kHidden, kInner, context, random);
      layer.down_bias = optional(kHidden);
      model.layers.push_back(layer);
    }
  }

  const float* vector(std::size_t size, std::mt19937& random) {
    vectors.push_back(random_floats(size, random));
    return vectors.back().data();
  }

  const PackedMatrix* matrix(SourceFormat format, std::size_t rows, std::size_t cols, Context& context,
                             std::mt19937& random) {
    const RandomSource source = random_source(format, rows, cols, random);
    const MatrixSource part = source.source();
    matrices.push_back(std::make_unique<PackedMatrix>(std::span(&part, 1), context));
    return matrices.back().get();
  }
};

// What a pass writes, starting from the same bytes everywhere.
struct State {
  std::vector<std::uint8_t> k, v;  // [layers][...]
  std::vector<float> hidden, last_hidden, qkv, attention, last_attention, gate_up, logits;
  std::vector<std::int32_t> best;
  std::vector<KvCacheView> caches;

  explicit State(std::size_t num_tokens, KvDtype dtype = KvDtype::kF16) {
    const KvCacheView layer{nullptr, nullptr, dtype, kBlocks, kKvHeads, kDim, kBlock};
    const std::size_t layer_size = kBlocks * kKvHeads * layer.head_bytes();
    k.resize(kLayers * layer_size);
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = static_cast<std::uint8_t>(0x30 + i * 2654435761U % 9);
    v = k;
    for (std::size_t i = 0; i < kLayers; ++i) {
      caches.push_back({&k[i * layer_size], &v[i * layer_size], dtype, kBlocks, kKvHeads, kDim, kBlock});
    }
    hidden.assign(num_tokens * kHidden, 0);
    last_hidden = hidden;
    qkv.assign(num_tokens * kQkv, 0);
    attention.assign(num_tokens * kAttention, 0);
    last_attention = attention;
    gate_up.assign(num_tokens * 2 * kInner, 0);
    logits.assign(num_tokens * kVocab, 0);
    best.assign(num_tokens, -1);
  }

  DecoderBuffers buffers() {
    return {hidden.data(), last_hidden.data(), qkv.data(), attention.data(), last_attention.data(), gate_up.data()};
  }
};

// Sequences of a step, each with blocks of its own.
struct TestStep {
  std::vector<std::int32_t> token_ids, positions, slots, tables, starts{0}, lengths, rows;
  static constexpr std::size_t kMaxBlocks = 30;

  TestStep(const std::vector<std::size_t>& scheduled, const std::vector<std::size_t>& contexts, std::mt19937& random) {
    std::int32_t next_block = 0;
    for (std::size_t s = 0; s < scheduled.size(); ++s) {
      std::vector<std::int32_t> table(kMaxBlocks, 0);
      for (std::size_t b = 0; b * kBlock < contexts[s]; ++b) table[b] = next_block++;
      tables.insert(tables.end(), table.begin(), table.end());
      for (std::size_t p = contexts[s] - scheduled[s]; p < contexts[s]; ++p) {
        token_ids.push_back(static_cast<std::int32_t>(random() % kVocab));
        positions.push_back(static_cast<std::int32_t>(p));
        slots.push_back(table[p / kBlock] * static_cast<std::int32_t>(kBlock) + static_cast<std::int32_t>(p % kBlock));
      }
      starts.push_back(static_cast<std::int32_t>(token_ids.size()));
      lengths.push_back(static_cast<std::int32_t>(contexts[s]));
      rows.push_back(starts.back() - 1);
    }
    CHECK(static_cast<std::size_t>(next_block) <= kBlocks);
  }

  DecoderStep step(const TestModel& test, bool picks) const {
    DecoderStep made{};
    made.num_tokens = token_ids.size();
    made.token_ids = token_ids.data();
    made.positions = positions.data();
    made.slot_mapping = slots.data();
    made.cos_sin = test.cos_sin.data();
    made.num_positions = kPositions;
    made.num_sequences = lengths.size();
    made.max_blocks = kMaxBlocks;
    made.block_tables = tables.data();
    made.query_start_loc = starts.data();
    made.context_lens = lengths.data();
    made.rows = picks ? rows.data() : nullptr;
    made.num_rows = picks ? rows.size() : 0;
    return made;
  }
};

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace foreword::test
