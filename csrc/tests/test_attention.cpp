// Paged attention against dense attention in double, and against itself cut in every other way, bit for bit.
#include <cmath>

#include "attention_cases.h"

using namespace foreword;
using namespace foreword::test;

namespace {

std::vector<float> whole(Context& context, const Shape& shape, const Sequence& sequence) {
  return attend(context, shape, {{&sequence, 0, sequence.length}}, 1);
}

// A query as the kernel multiplies it: rounded to codes where keys are codes.
std::vector<double> query_of(const Shape& shape, const float* query) {
  std::vector<double> values(query, query + shape.dim);
  if (!stores_codes(shape.dtype)) return values;
  double squares = 0;
  for (const double x : values) squares += x * x;
  const double length = std::sqrt(squares);
  const auto scale = static_cast<float>(length / kCodeLength), inverse = static_cast<float>(kCodeLength / length);
  for (std::size_t d = 0; d < shape.dim; ++d) {
    values[d] = static_cast<double>(std::nearbyint(query[d] * inverse)) * static_cast<double>(scale);
  }
  return values;
}

// What rounding the weights to codes may do to the weighted sum of one dimension: half a step of its tile for each key.
double error_of_codes(const Shape& shape, const Sequence& sequence, const std::vector<double>& weights,
                      std::size_t kv_head, std::size_t d) {
  double error = 0;
  for (std::size_t begin = 0; begin < weights.size(); begin += kAttentionTile) {
    double largest = 0, sum = 0, codes = 0;
    for (std::size_t key = begin; key < std::min(begin + kAttentionTile, weights.size()); ++key) {
      const std::size_t row = key * shape.kv_heads + kv_head;
      const double weight = weights[key] * static_cast<double>(sequence.value_scales[row]);
      largest = std::max(largest, weight);
      sum += weight;
      codes += std::fabs(static_cast<double>(sequence.values[row * shape.dim + d] / sequence.value_scales[row]));
    }
    error += std::max(largest / 32767, sum / 262000) * (0.5 + 1e-3) * codes;
  }
  return error;
}

// Largest error in units of what rounding may do.
//
// A score's chain of D multiply-adds and the scaling of q err by at most (D + 3) u sum|q k| scale, u = 2^-24; a sum of
// codes is exact, and its scales, the key's rounding here and the difference to the peak are 10 u of the score. That,
// taken twice (numerator and denominator), is the relative error of a weight, with 4 u for the exponential on each
// side; a tile's sums add up to 128 u each, a merge 8 u, the scales of a value 4 u.
double error_in_bounds(const Shape& shape, const Sequence& sequence, const std::vector<float>& out,
                       std::size_t begin = 0) {
  const double unit = std::ldexp(1.0, -24);
  const bool codes = stores_codes(shape.dtype);
  const std::size_t query_width = shape.heads * shape.dim, kv_width = shape.kv_heads * shape.dim;
  double worst = 0;
  for (std::size_t p = begin; p < sequence.length; ++p) {
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const std::vector<double> query = query_of(shape, sequence.queries.data() + p * query_width + h * shape.dim);
      const std::size_t kv_head = h / (shape.heads / shape.kv_heads), column = kv_head * shape.dim;
      std::vector<double> scores(p + 1), weights(p + 1), sums(shape.dim), sizes(shape.dim);
      double total = 0, score_error = 0;
      for (std::size_t key = 0; key <= p; ++key) {
        double size = 0;
        for (std::size_t d = 0; d < shape.dim; ++d) {
          const double product = query[d] * sequence.keys[key * kv_width + column + d];
          scores[key] += product * kScale;
          size += std::fabs(product) * kScale;
        }
        const double roundings = codes ? 10 * std::fabs(scores[key]) : static_cast<double>(shape.dim + 3) * size;
        score_error = std::max(score_error, roundings * unit);
      }
      const double peak = *std::max_element(scores.begin(), scores.end());
      for (std::size_t key = 0; key <= p; ++key) {
        weights[key] = std::exp(scores[key] - peak);
        total += weights[key];
        for (std::size_t d = 0; d < shape.dim; ++d) {
          const double value = sequence.values[key * kv_width + column + d];
          sums[d] += weights[key] * value;
          sizes[d] += weights[key] * std::fabs(value);
        }
      }
      const double tiles = static_cast<double>(p / kAttentionTile + 1);
      const double keys = static_cast<double>(std::min(p + 1, kAttentionTile));
      const double relative = 2 * score_error + (8 + 2 * keys + 8 * tiles + (codes ? 4 : 0)) * unit;
      for (std::size_t d = 0; d < shape.dim; ++d) {
        const double got = out[(p - begin) * query_width + h * shape.dim + d];
        double bound = relative * sizes[d] / total + 1e-37;
        if (codes) bound += error_of_codes(shape, sequence, weights, kv_head, d) / total;
        const double error = std::fabs(got - sums[d] / total) / bound;
        worst = error <= worst ? worst : error;  // NaN counts
        if (std::isnan(got)) return std::numeric_limits<double>::infinity();
      }
    }
  }
  return worst;
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const KvDtype dtype : kDtypes) {
    for (const auto& [heads, kv_heads] : {std::pair<std::size_t, std::size_t>{2, 2}, {6, 2}, {5, 1}}) {
      for (const std::size_t dim : {2U, 6U, 8U, 16U, 20U, 64U, 80U, 128U}) {
        const std::size_t block = dim % 3 == 0 ? 64 : dim % 5 == 0 ? 8 : 16;
        all.push_back({heads, kv_heads, dim, block, dtype});
      }
    }
    all.push_back({9, 3, 64, 16, dtype});
    all.push_back({13, 1, 32, 24, dtype});  // blocks cross tiles
    all.push_back({14, 1, 16, 128, dtype});
    all.push_back({3, 3, 48, 8, dtype});
    all.push_back({4, 2, 10, 5, dtype});    // vectors cross blocks
    all.push_back({128, 1, 4, 16, dtype});  // a group of more rows than a unit likes
  }
  return all;
}

// Whole prompts of these lengths hold every shorter one: row p sees p + 1 keys.
constexpr std::size_t kLength = 260;

}  // namespace

TEST(attention, equals_dense_attention_within_rounding) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (const Shape& shape : shapes()) {
      const std::size_t length = shape.heads > 20 ? 40 : kLength;
      const Sequence sequence(shape, length, 3);
      const double error = error_in_bounds(shape, sequence, whole(context, shape, sequence));
      CHECK_MSG(error <= 1, "H %zu J %zu D %zu B %zu: %g bounds", shape.heads, shape.kv_heads, shape.dim, shape.block,
                error);
    }
  }
}

TEST(attention, long_contexts_equal_dense_attention_within_rounding) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (const KvDtype dtype : kDtypes) {
      const Shape shape{6, 2, 32, 16, dtype};
      const Sequence sequence(shape, 3000, 4);
      const std::vector<float> out = attend(context, shape, {{&sequence, 2990, 3000}}, 1);
      CHECK(error_in_bounds(shape, sequence, out, 2990) <= 1);
    }
  }
}

TEST(attention, a_position_has_the_same_bits_however_the_prompt_is_cut) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (const Shape& shape : shapes()) {
      const std::size_t length = shape.heads > 20 ? 150 : kLength;
      const Sequence sequence(shape, length, 5);
      const std::vector<float> expected = whole(context, shape, sequence);
      std::mt19937 random(6);
      for (const unsigned most : {3U, 40U, 140U}) {
        std::vector<float> got;
        for (std::size_t begin = 0; begin < length;) {
          const std::size_t end = std::min(length, begin + 1 + random() % most);
          const std::vector<float> part = attend(context, shape, {{&sequence, begin, end}}, most);
          got.insert(got.end(), part.begin(), part.end());
          begin = end;
        }
        check_same(got, expected);
      }
    }
  }
}

TEST(attention, one_token_at_a_time_gives_the_same_bits_as_all_at_once) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (const KvDtype dtype : kDtypes) {
      const Shape shape{9, 3, 64, 16, dtype};
      const Sequence sequence(shape, 400, 8);
      std::vector<float> got;
      for (std::size_t p = 0; p < sequence.length; ++p) {
        const std::vector<float> row = attend(context, shape, {{&sequence, p, p + 1}}, static_cast<unsigned>(p));
        got.insert(got.end(), row.begin(), row.end());
      }
      check_same(got, whole(context, shape, sequence));
    }
  }
}

TEST(attention, batch_mates_threads_strides_and_block_sizes_do_not_show) {
  for (const InstructionSet isa : instruction_sets()) {
    for (const KvDtype dtype : kDtypes) {
      const Shape shape{6, 2, 32, 16, dtype};
      const Sequence sequence(shape, 700, 9), other(shape, 900, 10), third(shape, 40, 11);
      const Chunk chunk{&sequence, 600, 700};
      Context one(1, isa);
      const std::vector<float> expected = attend(one, shape, {chunk}, 1);
      for (const std::size_t threads : {1U, 2U, 3U}) {
        Context context(threads, isa);
        check_same(attend(context, shape, {chunk}, 2, 5), expected);
        for (const std::size_t block : {8U, 24U, 64U, 7U}) {
          const Shape blocks{6, 2, 32, block, dtype};
          std::vector<float> got = attend(context, blocks, {{&third, 0, 40}, chunk, {&other, 899, 900}}, 3, 1);
          got.erase(got.begin(), got.begin() + 40 * 6 * 32);
          got.resize(expected.size());
          check_same(got, expected);
        }
      }
    }
  }
}

TEST(attention, long_decodes_have_the_same_bits_with_any_number_of_threads) {
  for (const InstructionSet isa : instruction_sets()) {
    for (const KvDtype dtype : kDtypes) {
      const Shape shape{9, 3, 64, 16, dtype};
      const Sequence sequence(shape, 2500, 12);
      Context one(1, isa), two(2, isa), many(7, isa);
      for (const std::size_t begin : {2499U, 2496U, 2480U}) {
        const std::vector<float> expected = attend(one, shape, {{&sequence, begin, 2500}}, 1);
        for (unsigned round = 0; round < 5; ++round) {
          check_same(attend(two, shape, {{&sequence, begin, 2500}}, round), expected);
          check_same(attend(many, shape, {{&sequence, begin, 2500}}, round), expected);
        }
      }
    }
  }
}

TEST(attention, later_keys_and_values_do_not_show_even_when_not_finite) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (const Shape& shape : shapes()) {
      const std::size_t length = 100, poisoned = 50;
      Sequence sequence(shape, length, 13);
      const std::vector<float> expected = whole(context, shape, sequence);
      const std::size_t width = shape.kv_heads * shape.dim;
      const float bad[] = {kNan, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
      for (std::size_t i = poisoned * width; i < sequence.keys.size(); ++i) {
        sequence.keys[i] = bad[i % 3];
        sequence.values[i] = bad[(i + 1) % 3];
      }
      std::vector<float> got = whole(context, shape, sequence);
      std::size_t hidden = 0;
      for (std::size_t i = poisoned * shape.heads * shape.dim; i < got.size(); ++i) hidden += std::isfinite(got[i]);
      CHECK(hidden == 0);  // and what is not finite is never mistaken for a number
      got.resize(poisoned * shape.heads * shape.dim);
      check_same(got, {expected.begin(), expected.begin() + static_cast<long>(got.size())});
    }
  }
}

TEST(attention, scores_far_apart_choose_the_largest) {
  for (const InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    const Shape shape{1, 1, 16, 16, KvDtype::kF32};
    Sequence sequence(shape, 300, 14);
    for (float& x : sequence.queries) x = 1000;
    for (std::size_t p = 0; p < 300; ++p) {
      for (std::size_t d = 0; d < 16; ++d) sequence.keys[p * 16 + d] = p == 17 ? 100.0f : -100.0f;
    }
    const std::vector<float> out = whole(context, shape, sequence);
    for (std::size_t p = 17; p < 300; ++p) {
      for (std::size_t d = 0; d < 16; ++d) CHECK(std::fabs(out[p * 16 + d] - sequence.values[17 * 16 + d]) < 1e-30f);
    }
  }
}
