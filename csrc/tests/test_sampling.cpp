// Sampling against the obvious definition: sort everything, filter, walk.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "foreword/sampling.h"
#include "philox.h"

using namespace foreword;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
using Words = std::array<std::uint32_t, 4>;

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> all{InstructionSet::kScalar};
  if (detect_instruction_set() != InstructionSet::kScalar) all.push_back(detect_instruction_set());
  return all;
}

std::vector<std::int32_t> by_logit(const std::vector<float>& logits) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](std::int32_t id) {
    const float x = logits[static_cast<std::size_t>(id)];
    return std::isnan(x) ? -kInfinity : x;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return value(a) > value(b); });
  return order;
}

// The definition in sampling.h, word for word.
std::int32_t draw(const std::vector<float>& logits, const SampleRow& row) {
  std::vector<std::int32_t> kept = by_logit(logits);
  if (row.temperature < 1e-4f) return kept[0];
  const float peak = logits[static_cast<std::size_t>(kept[0])];
  const auto weight = [&](std::int32_t id) {
    const float x = logits[static_cast<std::size_t>(id)];
    return std::isnan(x) ? 0.0 : std::exp((static_cast<double>(x) - peak) / row.temperature);
  };
  if (row.top_k > 0) kept.resize(std::min(kept.size(), static_cast<std::size_t>(row.top_k)));
  if (row.top_p < 1) {
    double mass = 0, running = 0;
    for (const std::int32_t id : kept) mass += weight(id);
    std::size_t count = 0;
    while (count < kept.size() && (count == 0 || running / mass < row.top_p)) running += weight(kept[count++]);
    kept.resize(count);
  }
  while (kept.size() > 1 && weight(kept.back()) < row.min_p) kept.pop_back();
  if (row.top_k <= 0 && row.top_p >= 1 && row.min_p <= 0) std::sort(kept.begin(), kept.end());
  double total = 0, running = 0;
  for (const std::int32_t id : kept) total += weight(id);
  const double u = uniform_at(row.seed, row.sequence_index, row.position);
  for (const std::int32_t id : kept) {
    running += weight(id);
    if (running > u * total) return id;
  }
  return kept.back();
}

std::vector<float> random_logits(std::size_t vocab_size, float spread, std::mt19937& random) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(vocab_size);
  for (float& x : logits) x = normal(random);
  return logits;
}

std::int32_t sample_one(Context& context, const std::vector<float>& logits, const SampleRow& row) {
  std::int32_t token = -1;
  sample(context, logits.data(), 1, logits.size(), &row, &token);
  return token;
}

SampleRow greedy() {
  return {0, 0, 1, 0, 0, 0, 0};
}

}  // namespace

TEST(sampling, philox_gives_its_published_answers) {
  CHECK((philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK((philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK((philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
         Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(sampling, a_draw_is_made_of_the_first_two_words) {
  CHECK(uniform_at(0, 0, 0) == static_cast<double>(0xe169c58d6627e8d5ULL >> 11) * 0x1p-53);
  const Words words = philox4x32({5, 9, 0, 0}, {0x89abcdef, 0x01234567});
  const std::uint64_t bits = static_cast<std::uint64_t>(words[1]) << 32 | words[0];
  CHECK(uniform_at(0x0123456789abcdefULL, 5, 9) == static_cast<double>(bits >> 11) * 0x1p-53);
}

TEST(sampling, draws_are_uniform) {
  std::vector<int> bins(64);
  double sum = 0;
  const std::uint32_t count = 64000;
  for (std::uint32_t i = 0; i < count; ++i) {
    const double u = uniform_at(42, i % 7, i);
    CHECK(u >= 0 && u < 1);
    sum += u;
    ++bins[static_cast<std::size_t>(u * 64)];
  }
  CHECK(std::fabs(sum / count - 0.5) < 0.005);
  for (const int bin : bins) CHECK(bin > 840 && bin < 1160);  // 1000 +- 5 sigma
}

TEST(sampling, every_setting_draws_what_the_definition_draws) {
  std::mt19937 random(1);
  for (const InstructionSet isa : instruction_sets()) {
    Context context(1, isa);
    for (const std::size_t vocab_size : {1U, 2U, 7U, 31U, 32U, 33U, 255U, 256U, 257U, 1000U, 5003U}) {
      for (const float spread : {0.01f, 1.0f, 4.0f, 60.0f}) {
        const std::vector<float> logits = random_logits(vocab_size, spread, random);
        std::vector<SampleRow> rows;
        for (const float temperature : {0.0f, 0.3f, 1.0f, 5.0f}) {
          for (const std::int32_t top_k : {0, 1, 5, 40, 3000, 100000}) {
            for (const float top_p : {1.0f, 0.0f, 0.3f, 0.9f, 0.9999f}) {
              for (const float min_p : {0.0f, 0.02f, 0.9f, 1.0f}) {
                const std::uint32_t position = static_cast<std::uint32_t>(random());
                rows.push_back({temperature, top_k, top_p, min_p, random(), 3, position});
              }
            }
          }
        }
        // The definition sorts: a share of the rows is enough for the larger vocabularies.
        for (std::size_t i = 0; i < rows.size(); i += vocab_size > 300 ? 29 : 1) {
          const SampleRow& row = rows[i];
          const std::int32_t got = sample_one(context, logits, row), expected = draw(logits, row);
          CHECK_MSG(got == expected, "V %zu spread %g T %g k %d p %g m %g: %d, not %d", vocab_size,
                    static_cast<double>(spread), static_cast<double>(row.temperature), row.top_k,
                    static_cast<double>(row.top_p), static_cast<double>(row.min_p), got, expected);
        }
      }
    }
  }
}

TEST(sampling, a_real_vocabulary_draws_what_the_definition_draws) {
  std::mt19937 random(2);
  for (const InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    const std::vector<float> logits = random_logits(49152, 3, random);
    for (const SampleRow& row : {SampleRow{1, 0, 1, 0, 1, 0, 0},
                                 {1, 0, 1, 0, 2, 0, 0},
                                 {1, 50, 0.95f, 0, 3, 0, 0},
                                 {2, 0, 0.9f, 0, 4, 0, 0},
                                 {0.7f, 0, 1, 0.05f, 5, 0, 0},
                                 {1, 2000, 0.8f, 0.01f, 6, 0, 0}}) {
      CHECK(sample_one(context, logits, row) == draw(logits, row));
    }
  }
}

TEST(sampling, frequencies_follow_the_softmax) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    const std::vector<float> logits{0.0f, std::log(2.0f), std::log(4.0f), -kInfinity, std::log(1.0f)};
    const std::uint32_t count = 40000;
    for (const bool filtered : {false, true}) {
      std::vector<int> seen(logits.size());
      for (std::uint32_t i = 0; i < count; ++i) {
        ++seen[static_cast<std::size_t>(sample_one(context, logits, {1, filtered ? 5 : 0, 1, 0, 7, 1, i}))];
      }
      const double expected[] = {0.125, 0.25, 0.5, 0, 0.125};
      for (std::size_t i = 0; i < logits.size(); ++i) {
        CHECK(std::fabs(static_cast<double>(seen[i]) / count - expected[i]) < 0.0125);
      }
      CHECK(seen[3] == 0);
    }
  }
}

TEST(sampling, ties_go_to_the_lower_id) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(1, isa);
    std::vector<float> logits(2000, 1.0f);
    logits[5] = 0.5f;
    CHECK(sample_one(context, logits, greedy()) == 0);
    for (std::uint32_t i = 0; i < 100; ++i) CHECK(sample_one(context, logits, {1, 6, 1, 0, 9, 0, i}) <= 6);
    logits[100] = 2.0f;
    logits[1700] = 2.0f;
    CHECK(sample_one(context, logits, greedy()) == 100);
    CHECK(sample_one(context, logits, {1, 1, 1, 0, 9, 0, 0}) == 100);
    std::vector<float> zeros(40, -0.0f);
    zeros[7] = 0.0f;
    CHECK(sample_one(context, zeros, greedy()) == 0);
  }
}

TEST(sampling, what_is_not_finite_never_crashes_and_nan_is_never_drawn) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(1, isa);
    for (const SampleRow& row : {greedy(),
                                 SampleRow{1, 0, 1, 0, 1, 0, 0},
                                 {1, 3, 1, 0, 1, 0, 0},
                                 {1, 0, 0.9f, 0, 1, 0, 0},
                                 {1, 0, 1, 0.1f, 1, 0, 0},
                                 {1, 50, kNan, kNan, 1, 0, 0}}) {
      CHECK(sample_one(context, std::vector<float>(40, kNan), row) == 0);
      CHECK(sample_one(context, std::vector<float>(40, -kInfinity), row) == 0);
      std::vector<float> one(40, kNan);
      one[33] = -5;
      CHECK(sample_one(context, one, row) == 33);
      std::vector<float> infinite(40, 1.0f);
      infinite[20] = infinite[30] = kInfinity;
      CHECK(sample_one(context, infinite, row) == 20);
    }
  }
}

TEST(sampling, a_row_does_not_depend_on_the_others_or_on_threads) {
  std::mt19937 random(3);
  for (const InstructionSet isa : instruction_sets()) {
    const std::size_t vocab_size = 777, num_rows = 13;
    std::vector<float> logits = random_logits(vocab_size * num_rows, 2, random);
    std::vector<SampleRow> rows;
    for (std::uint32_t r = 0; r < num_rows; ++r) {
      rows.push_back(
          {0.5f * static_cast<float>(r % 3), static_cast<std::int32_t>(r % 2) * 9, r % 5 == 0 ? 0.8f : 1, 0, r, r, r});
    }
    for (const std::size_t threads : {1U, 2U, 3U}) {
      Context context(threads, isa);
      std::vector<std::int32_t> tokens(num_rows);
      sample(context, logits.data(), num_rows, vocab_size, rows.data(), tokens.data());
      for (std::size_t r = 0; r < num_rows; ++r) {
        const auto begin = logits.begin() + static_cast<long>(r * vocab_size);
        CHECK(tokens[r] == draw({begin, begin + static_cast<long>(vocab_size)}, rows[r]));
      }
    }
  }
}

TEST(sampling, logprobs_and_ranks_equal_a_full_sort) {
  std::mt19937 random(4);
  for (const InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (const std::size_t vocab_size : {1U, 5U, 33U, 257U, 5003U}) {
      const std::size_t num_rows = 3, k = std::min<std::size_t>(20, vocab_size);
      std::vector<float> logits = random_logits(vocab_size * num_rows, 5, random);
      if (vocab_size > 30) logits[3] = logits[17] = logits[29], logits[8] = -kInfinity, logits[9] = kNan;
      std::vector<std::int32_t> tokens, ranks(num_rows), ids(num_rows * k);
      for (std::size_t r = 0; r < num_rows; ++r) tokens.push_back(static_cast<std::int32_t>((r * 17 + 3) % vocab_size));
      std::vector<float> chosen(num_rows), best(num_rows * k);
      top_logprobs(context, logits.data(), num_rows, vocab_size, tokens.data(), k, chosen.data(), ranks.data(),
                   ids.data(), best.data());
      for (std::size_t r = 0; r < num_rows; ++r) {
        const auto begin = logits.begin() + static_cast<long>(r * vocab_size);
        const std::vector<float> row(begin, begin + static_cast<long>(vocab_size));
        const std::vector<std::int32_t> order = by_logit(row);
        const double peak = row[static_cast<std::size_t>(order[0])];
        double sum = 0;
        for (const float x : row) sum += std::isnan(x) ? 0 : std::exp(x - peak);
        const auto expected = [&](std::int32_t id) { return row[static_cast<std::size_t>(id)] - peak - std::log(sum); };
        for (std::size_t i = 0; i < k; ++i) {
          CHECK(ids[r * k + i] == order[i]);
          CHECK(std::fabs(best[r * k + i] - expected(order[i])) <= 1e-6 * std::fabs(expected(order[i])) + 1e-9);
        }
        std::size_t rank = 1;
        for (const float x : row) rank += x > row[static_cast<std::size_t>(tokens[r])];
        CHECK(static_cast<std::size_t>(ranks[r]) == rank);
        CHECK(std::fabs(chosen[r] - expected(tokens[r])) <= 1e-6 * std::fabs(expected(tokens[r])) + 1e-9);
      }
    }
  }
}

TEST(sampling, logprobs_of_rows_that_are_not_finite_are_defined) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(1, isa);
    std::vector<float> chosen(1), best(2);
    std::vector<std::int32_t> ranks(1), ids(2);
    const auto run = [&](const std::vector<float>& logits, std::int32_t token) {
      top_logprobs(context, logits.data(), 1, logits.size(), &token, 2, chosen.data(), ranks.data(), ids.data(),
                   best.data());
    };
    run(std::vector<float>(8, kNan), 5);
    CHECK(std::fabs(chosen[0] + std::log(8.0f)) < 1e-6f && ranks[0] == 1 && ids[0] == 0 && ids[1] == 1);
    run({0, kInfinity, 1, kInfinity}, 0);
    CHECK(chosen[0] == -kInfinity && ranks[0] == 4 && ids[0] == 1 && ids[1] == 3);
    CHECK(std::fabs(best[0] + std::log(2.0f)) < 1e-6f);
    run({1, kNan, -kInfinity, 0}, 1);
    CHECK(chosen[0] == -kInfinity && ranks[0] == 3);
  }
}
