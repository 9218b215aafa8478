// Products, norms and SwiGLU: right against plain double loops, and the same bits however the work is cut.
#include <cstdio>

#include "check.h"
#include "packed_matrix.h"
#include "sources.h"

using namespace foreword;
using namespace foreword::test;

namespace {

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets{InstructionSet::kScalar};
  if (detect_instruction_set() != InstructionSet::kScalar) sets.push_back(detect_instruction_set());
  return sets;
}

PackedMatrix pack_one(const RandomSource& source, Context& context) {
  const MatrixSource part = source.source();
  return PackedMatrix({&part, 1}, context);
}

std::vector<float> product(Context& context, const PackedMatrix& matrix, const float* x, std::size_t num_rows,
                           RowTransform transform = {}) {
  const std::size_t stride = transform.kind == RowTransform::kSwiGlu ? 2 * matrix.cols() : matrix.cols();
  std::vector<float> out(num_rows * matrix.rows(), 7.0f);
  linear(context, x, stride, num_rows, transform, matrix, nullptr, false, out.data(), matrix.rows());
  return out;
}

bool same_bits(const float* a, const float* b, std::size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}

// Checks out [T, N] against double sums. An output is a chain of f32 operations, at most K + K/64 + 1 of them, or 4 per
// group where activations are rounded (two roundings of factors, two multiply-adds): its error is at most that many
// half units of the sum of the sizes of what is added.
void check_product(const std::vector<float>& out, const RandomSource& source, const std::vector<float>& x) {
  const std::size_t num_rows = x.size() / source.cols;
  const bool rounds = rounds_activations(source.format);
  const double operations = rounds ? 4.0 * static_cast<double>(source.cols / 32) + 1
                                   : static_cast<double>(source.cols + source.cols / 64 + 2);
  for (std::size_t t = 0; t < num_rows; ++t) {
    const std::vector<double> seen = seen_row(&x[t * source.cols], source.cols, rounds);
    for (std::size_t n = 0; n < source.rows; ++n) {
      double sum = 0, size = 0;
      for (std::size_t k = 0; k < source.cols; ++k) {
        sum += weight_value(source, n, k) * seen[k];
        size += weight_size(source, n, k) * std::fabs(seen[k]);
      }
      const double got = static_cast<double>(out[t * source.rows + n]);
      CHECK_MSG(std::fabs(got - sum) <= operations * 0x1p-24 * size,
                "format %d N %zu K %zu T %zu at (%zu, %zu): %.9g, %.9g", static_cast<int>(source.format), source.rows,
                source.cols, num_rows, t, n, got, sum);
    }
  }
}

}  // namespace

TEST(matmul, products_equal_plain_sums_for_every_row_count_output_count_and_length) {
  std::mt19937 random(1);
  for (InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (SourceFormat format : kAllFormats) {
      const std::size_t unit = block_size(format);
      const std::vector<std::size_t> lengths = unit == 1
                                                   ? std::vector<std::size_t>{1, 2, 7, 8, 9, 17, 33, 63, 64, 65, 130}
                                                   : std::vector<std::size_t>{unit, 3 * unit, 4 * unit};
      for (std::size_t cols : lengths) {
        for (std::size_t outputs : {1U, 7U, 8U, 9U, 16U, 17U, 33U}) {
          const RandomSource source = random_source(format, outputs, cols, random);
          const PackedMatrix matrix = pack_one(source, context);
          for (std::size_t num_rows = 0; num_rows <= 14; ++num_rows) {
            const std::vector<float> x = random_floats(num_rows * cols, random);
            check_product(product(context, matrix, x.data(), num_rows), source, x);
          }
        }
      }
    }
  }
}

TEST(matmul, a_row_has_the_same_bits_alone_in_any_batch_and_on_any_number_of_threads) {
  std::mt19937 random(2);
  for (InstructionSet isa : instruction_sets()) {
    for (SourceFormat format : kAllFormats) {
      const bool fast = isa != InstructionSet::kScalar;
      const std::size_t cols = 1024, outputs = fast ? 100 : 20, most = fast ? 512 : 40;
      const RandomSource source = random_source(format, outputs, cols, random);
      const std::vector<float> x = random_floats(most * 2 * cols, random), weight = random_floats(cols, random);
      Context one(1, isa), two(2, isa), three(3, isa);
      const PackedMatrix matrix = pack_one(source, two);
      const RowTransform transforms[] = {
          {}, {RowTransform::kRmsNorm, weight.data(), 1e-5f}, {RowTransform::kSwiGlu, nullptr, 0}};
      for (const RowTransform& transform : transforms) {
        const std::size_t stride = transform.kind == RowTransform::kSwiGlu ? 2 * cols : cols;
        std::vector<float> alone(most * outputs);
        for (std::size_t t = 0; t < most; ++t) {
          const std::vector<float> row = product(one, matrix, &x[t * stride], 1, transform);
          std::copy(row.begin(), row.end(), alone.begin() + static_cast<std::ptrdiff_t>(t * outputs));
        }
        for (Context* context : {&one, &two, &three}) {
          for (std::size_t num_rows = 1; num_rows <= 33; ++num_rows) {
            CHECK(same_bits(product(*context, matrix, x.data(), num_rows, transform).data(), alone.data(),
                            num_rows * outputs));
          }
          CHECK(same_bits(product(*context, matrix, x.data(), most, transform).data(), alone.data(), most * outputs));
        }
      }
    }
  }
}

TEST(matmul, scalar_and_vector_kernels_agree_bit_for_bit_on_quantised_weights) {
  std::mt19937 random(3);
  for (SourceFormat format : kAllFormats) {
    if (!rounds_activations(format)) continue;
    const std::size_t cols = 768, outputs = 35;
    const RandomSource source = random_source(format, outputs, cols, random);
    std::vector<float> x = random_floats(11 * 2 * cols, random);
    for (std::size_t i = 0; i < x.size(); i += 97) x[i] = 40.0f * x[i];
    const std::vector<float> weight = random_floats(cols, random);
    Context scalar(1, InstructionSet::kScalar), best(2, detect_instruction_set());
    const PackedMatrix matrix = pack_one(source, best);
    const RowTransform transforms[] = {
        {}, {RowTransform::kRmsNorm, weight.data(), 1e-5f}, {RowTransform::kSwiGlu, nullptr, 0}};
    for (const RowTransform& transform : transforms) {
      CHECK(same_bits(product(scalar, matrix, x.data(), 11, transform).data(),
                      product(best, matrix, x.data(), 11, transform).data(), 11 * outputs));
    }
  }
}

TEST(matmul, extreme_codes_do_not_overflow) {
  for (InstructionSet isa : instruction_sets()) {
    Context context(1, isa);
    for (SourceFormat format : {SourceFormat::kQ4_0, SourceFormat::kQ4_1, SourceFormat::kQ4_K, SourceFormat::kQ8_0}) {
      std::mt19937 random(4);
      RandomSource source = random_source(format, 16, 512, random);
      const std::size_t block = source_row_bytes(format, block_size(format)),
                        head = format == SourceFormat::kQ4_K ? 4 : 2 * num_block_scales(format);
      for (std::size_t i = 1; i < source.bytes.size(); ++i) {
        if ((i - 1) % block >= head)
          source.bytes[i] = format == SourceFormat::kQ8_0 ? 0x80 : 0xff;  // -128, or 15 twice
      }
      const PackedMatrix matrix = pack_one(source, context);
      for (float value : {1.0f, -1.0f}) {
        const std::vector<float> x(3 * 512, value);
        check_product(product(context, matrix, x.data(), 3), source, x);
      }
    }
  }
}

TEST(matmul, norm_and_swiglu_fused_equal_the_separate_steps) {
  std::mt19937 random(5);
  for (InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (SourceFormat format : kAllFormats) {
      const std::size_t cols = block_size(format) == 1 ? 77 : 512, num_rows = 9;
      const PackedMatrix matrix = pack_one(random_source(format, 24, cols, random), context);
      const std::vector<float> x = random_floats(num_rows * cols, random), weight = random_floats(cols, random);
      std::vector<float> normed(x.size());
      rms_norm(context, x.data(), cols, num_rows, cols, weight.data(), 1e-6f, normed.data(), cols);
      const std::vector<float> fused =
          product(context, matrix, x.data(), num_rows, {RowTransform::kRmsNorm, weight.data(), 1e-6f});
      CHECK(same_bits(fused.data(), product(context, matrix, normed.data(), num_rows).data(), fused.size()));
    }
  }
}

TEST(matmul, swiglu_equals_its_definition_at_every_position) {
  std::mt19937 random(6);
  for (InstructionSet isa : instruction_sets()) {
    Context context(1, isa);
    for (std::size_t cols = 1; cols <= 17; ++cols) {
      RandomSource identity = random_source(SourceFormat::kF32, cols, cols, random);
      for (std::size_t i = 0; i < cols * cols; ++i) {
        const float value = i / cols == i % cols ? 1.0f : 0.0f;
        std::memcpy(identity.bytes.data() + 1 + i * 4, &value, 4);
      }
      const PackedMatrix matrix = pack_one(identity, context);
      std::vector<float> x = random_floats(2 * cols, random, 5.0f);
      const float special[] = {0.0f, -0.0f, 80.0f, -80.0f, 200.0f, -200.0f, 1e-30f, 60.0f};
      for (std::size_t k = 0; k < std::min<std::size_t>(cols, 8); ++k) x[k] = cols > 8 ? special[k] : x[k];
      const std::vector<float> out = product(context, matrix, x.data(), 1, {RowTransform::kSwiGlu, nullptr, 0});
      for (std::size_t k = 0; k < cols; ++k) {
        const double gate = static_cast<double>(x[k]), up = static_cast<double>(x[cols + k]);
        const double expected = gate / (1 + std::exp(-gate)) * up;
        CHECK_MSG(std::fabs(static_cast<double>(out[k]) - expected) <= 8 * 0x1p-24 * std::fabs(expected) + 1e-34,
                  "silu(%g) * %g: %.9g, %.9g", gate, up, static_cast<double>(out[k]), expected);
      }
    }
  }
}

TEST(matmul, rms_norm_equals_its_definition_with_strides_and_in_place) {
  std::mt19937 random(7);
  for (InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (std::size_t cols = 1; cols <= 17; ++cols) {
      const std::size_t num_rows = 5, stride = cols + 3;
      const std::vector<float> x = random_floats(num_rows * stride, random), weight = random_floats(cols, random);
      std::vector<float> out = x;
      rms_norm(context, out.data(), stride, num_rows, cols, weight.data(), 1e-5f, out.data(), stride);
      for (std::size_t t = 0; t < num_rows; ++t) {
        double squares = 0;
        for (std::size_t k = 0; k < cols; ++k)
          squares += static_cast<double>(x[t * stride + k]) * static_cast<double>(x[t * stride + k]);
        const double factor = 1 / std::sqrt(squares / static_cast<double>(cols) + static_cast<double>(1e-5f));
        for (std::size_t k = 0; k < stride; ++k) {
          const double got = static_cast<double>(out[t * stride + k]), before = static_cast<double>(x[t * stride + k]);
          const double expected = k < cols ? before * factor * static_cast<double>(weight[k]) : before;
          CHECK(std::fabs(got - expected) <= 3 * 0x1p-24 * std::fabs(expected));
        }
      }
    }
  }
}

TEST(matmul, bias_accumulation_and_strides_touch_only_the_outputs) {
  std::mt19937 random(8);
  for (InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (SourceFormat format : {SourceFormat::kQ4_1, SourceFormat::kF32}) {
      for (std::size_t outputs : {16U, 21U}) {
        const std::size_t cols = 64, num_rows = 7, x_stride = cols + 5, out_stride = outputs + 3;
        const RandomSource source = random_source(format, outputs, cols, random);
        const PackedMatrix matrix = pack_one(source, context);
        const std::vector<float> x = random_floats(num_rows * x_stride, random), bias = random_floats(outputs, random);
        for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
          for (bool accumulate : {false, true}) {
            const std::vector<float> before = random_floats(num_rows * out_stride, random);
            std::vector<float> out = before;
            linear(context, x.data(), x_stride, num_rows, {}, matrix, b, accumulate, out.data(), out_stride);
            for (std::size_t t = 0; t < num_rows; ++t) {
              const std::vector<float> plain = product(context, matrix, &x[t * x_stride], 1);
              for (std::size_t n = 0; n < out_stride; ++n) {
                const float old = before[t * out_stride + n];
                float expected = n < outputs ? plain[n] : old;
                if (n < outputs && b != nullptr) expected = expected + b[n];
                if (n < outputs && accumulate) expected = old + expected;
                CHECK(out[t * out_stride + n] == expected);
              }
            }
          }
        }
      }
    }
  }
}

TEST(matmul, parts_of_different_formats_are_products_of_their_own) {
  std::mt19937 random(9);
  for (InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    const RandomSource sources[] = {random_source(SourceFormat::kQ4_K, 24, 512, random),
                                    random_source(SourceFormat::kF16, 9, 512, random),
                                    random_source(SourceFormat::kQ8_0, 40, 512, random)};
    const MatrixSource parts[] = {sources[0].source(), sources[1].source(), sources[2].source()};
    const PackedMatrix matrix(parts, context);
    const std::vector<float> x = random_floats(10 * 512, random), bias = random_floats(73, random);
    std::vector<float> out(10 * 73);
    linear(context, x.data(), 512, 10, {}, matrix, bias.data(), false, out.data(), 73);
    std::size_t column = 0;
    for (const RandomSource& source : sources) {
      const std::vector<float> alone = product(context, pack_one(source, context), x.data(), 10);
      for (std::size_t t = 0; t < 10; ++t) {
        for (std::size_t n = 0; n < source.rows; ++n)
          CHECK(out[t * 73 + column + n] == alone[t * source.rows + n] + bias[column + n]);
      }
      column += source.rows;
    }
  }
}

TEST(matmul, a_nan_or_infinity_shows_in_every_output_of_its_row_and_in_no_other) {
  std::mt19937 random(10);
  for (InstructionSet isa : instruction_sets()) {
    Context context(2, isa);
    for (SourceFormat format : kAllFormats) {
      const std::size_t cols = 512, outputs = 20;
      const PackedMatrix matrix = pack_one(random_source(format, outputs, cols, random), context);
      const std::vector<float> clean = random_floats(8 * cols, random);
      const std::vector<float> expected = product(context, matrix, clean.data(), 8);
      for (float bad : {NAN, INFINITY, -INFINITY}) {
        std::vector<float> x = clean;
        x[3 * cols + 100] = bad;
        const std::vector<float> out = product(context, matrix, x.data(), 8);
        for (std::size_t i = 0; i < out.size(); ++i) {
          CHECK(i / outputs == 3 ? !std::isfinite(out[i]) : out[i] == expected[i]);
        }
      }
    }
  }
}

TEST(matmul, tiny_and_zero_groups_are_finite) {
  std::mt19937 random(11);
  for (InstructionSet isa : instruction_sets()) {
    Context context(1, isa);
    const PackedMatrix matrix = pack_one(random_source(SourceFormat::kQ4_1, 16, 64, random), context);
    for (float value : {0.0f, -0.0f, 1e-45f, 1e-38f, 3e-37f}) {
      const std::vector<float> x(64, value);
      for (float y : product(context, matrix, x.data(), 1)) CHECK(std::isfinite(y) && std::fabs(y) < 1e-30f);
    }
  }
}
