// Packing and embedding.
#include <numeric>
#include <stdexcept>

#include "check.h"
#include "packed_matrix.h"
#include "sources.h"

using namespace foreword;
using namespace foreword::test;

namespace {

std::vector<std::int32_t> shuffled(std::size_t n, std::mt19937& random) {
  std::vector<std::int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

std::vector<float> embed_all(Context& context, const PackedMatrix& matrix) {
  std::vector<std::int32_t> ids(matrix.rows());
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> out(matrix.rows() * matrix.cols());
  embed(context, matrix, ids, out.data(), matrix.cols());
  return out;
}

}  // namespace

TEST(matrix, a_packed_matrix_gives_back_every_weight_for_every_format_and_row_count) {
  std::mt19937 random(1);
  Context context(2, detect_instruction_set());
  for (SourceFormat format : kAllFormats) {
    for (std::size_t rows : {1U, 2U, 7U, 8U, 9U, 15U, 16U, 17U, 31U, 33U, 50U}) {
      const std::size_t cols = block_size(format) == 1 ? 37 : 2 * block_size(format);
      const RandomSource source = random_source(format, rows, cols, random);
      const MatrixSource part = source.source();
      const PackedMatrix matrix({&part, 1}, context);

      const std::vector<float> out = embed_all(context, matrix);

      CHECK(matrix.rows() == rows && matrix.cols() == cols);
      for (std::size_t i = 0; i < rows * cols; ++i) {
        CHECK(out[i] == static_cast<float>(weight_value(source, i / cols, i % cols)));
      }
    }
  }
}

TEST(matrix, parts_follow_one_another_each_in_its_own_row_order) {
  std::mt19937 random(2);
  Context context(3, detect_instruction_set());
  const std::size_t cols = 256;
  const RandomSource a = random_source(SourceFormat::kQ4_1, 20, cols, random);
  const RandomSource b = random_source(SourceFormat::kQ4_1, 5, cols, random);
  const RandomSource c = random_source(SourceFormat::kF16, 19, cols, random);
  const std::vector<std::int32_t> order_a = shuffled(20, random), order_c = shuffled(19, random);
  const MatrixSource parts[] = {a.source(order_a.data()), b.source(), c.source(order_c.data())};
  const PackedMatrix matrix(parts, context);

  const std::vector<float> out = embed_all(context, matrix);

  CHECK(matrix.rows() == 44 && matrix.parts().size() == 2);  // a and b share a format, so they share tiles
  for (std::size_t row = 0; row < 44; ++row) {
    for (std::size_t k = 0; k < cols; ++k) {
      const double expected = row < 20   ? weight_value(a, static_cast<std::size_t>(order_a[row]), k)
                              : row < 25 ? weight_value(b, row - 20, k)
                                         : weight_value(c, static_cast<std::size_t>(order_c[row - 25]), k);
      CHECK(out[row * cols + k] == static_cast<float>(expected));
    }
  }
}

TEST(matrix, packed_bytes_are_those_of_the_file_when_rows_fill_the_tiles) {
  std::mt19937 random(3);
  Context context(1, InstructionSet::kScalar);
  for (SourceFormat format : kAllFormats) {
    const RandomSource source = random_source(format, 32, 512, random);
    const MatrixSource part = source.source();
    const PackedMatrix matrix({&part, 1}, context);
    // Q4_K's 6-bit scales and minima take a byte each here: 2368 bytes for 16 blocks of 144.
    const std::size_t expected = format == SourceFormat::kQ4_K ? 32 / 16 * 2 * 2368 : source.bytes.size() - 1;
    CHECK(matrix.num_bytes() == expected);
  }
}

TEST(matrix, what_does_not_fit_is_refused) {
  std::mt19937 random(4);
  Context context(1, InstructionSet::kScalar);
  const RandomSource q4 = random_source(SourceFormat::kQ4_1, 4, 64, random),
                     f32 = random_source(SourceFormat::kF32, 4, 65, random);
  const auto pack = [&](std::vector<MatrixSource> parts) { return PackedMatrix(parts, context).rows(); };
  const std::int32_t too_high[] = {0, 1, 2, 4}, negative[] = {0, -1, 2, 3};

  CHECK_THROWS(pack({}), std::invalid_argument);
  CHECK_THROWS(pack({q4.source(), f32.source()}), std::invalid_argument);
  CHECK_THROWS(pack({q4.source(too_high)}), std::invalid_argument);
  CHECK_THROWS(pack({q4.source(negative)}), std::invalid_argument);
  CHECK_THROWS(pack({{SourceFormat::kQ4_1, 4, 48, q4.data(), nullptr}}), std::invalid_argument);
  CHECK_THROWS(pack({{SourceFormat::kQ4_K, 4, 64, q4.data(), nullptr}}), std::invalid_argument);
  CHECK_THROWS(pack({{SourceFormat::kF32, 0, 65, f32.data(), nullptr}}), std::invalid_argument);
}

TEST(matrix, a_small_matrix_takes_the_room_that_a_large_one_left) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  WeightMemory memory;
  const auto first = memory.allocate(7 * kMiB), second = memory.allocate(7 * kMiB);
  const auto elsewhere = memory.allocate(7 * kMiB), small = memory.allocate(kMiB), large = memory.allocate(6 * kMiB);

  CHECK(second.get() == first.get() + 7 * kMiB);
  CHECK(small.get() == second.get() + 7 * kMiB);
  CHECK(large.get() == elsewhere.get() + 7 * kMiB);
}
