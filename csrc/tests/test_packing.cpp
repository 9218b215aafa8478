// Many matrices at once, beside the caller, equal each of them alone.
#include <cstring>
#include <stdexcept>

#include "check.h"
#include "foreword/packing.h"
#include "packed_matrix.h"
#include "sources.h"

using namespace foreword;
using namespace foreword::test;

namespace {

constexpr std::uint16_t kNotFinite[] = {0x7C00, 0xFC00, 0x7E01};  // infinities and a NaN

std::vector<RandomSource> sources_of_every_format(std::size_t rows, std::mt19937& random) {
  std::vector<RandomSource> sources;
  for (SourceFormat format : kAllFormats) sources.push_back(random_source(format, rows, 256, random));
  return sources;
}

std::vector<std::vector<MatrixSource>> alone(const std::vector<RandomSource>& sources) {
  std::vector<std::vector<MatrixSource>> matrices;
  for (const RandomSource& source : sources) matrices.push_back({source.source()});
  return matrices;
}

void check_equal(const PackedMatrix& got, const PackedMatrix& expected) {
  CHECK(got.rows() == expected.rows() && got.cols() == expected.cols());
  CHECK(got.parts().size() == expected.parts().size());
  for (std::size_t i = 0; i < got.parts().size(); ++i) {
    const PackedMatrix::Part &a = got.parts()[i], &b = expected.parts()[i];
    CHECK(a.num_bytes == b.num_bytes && std::memcmp(a.storage.get(), b.storage.get(), a.num_bytes) == 0);
  }
}

// Puts a value that is no number into the row of a source: a whole one, or the last scale of the row's last block.
void spoil(RandomSource& source, std::size_t row, std::uint16_t bits) {
  const std::size_t row_bytes = source_row_bytes(source.format, source.cols);
  std::uint8_t* const end = source.bytes.data() + 1 + (row + 1) * row_bytes;
  const std::size_t block_bytes = row_bytes / (source.cols / block_size(source.format));
  if (source.format == SourceFormat::kF32 || source.format == SourceFormat::kBf16) {
    bits = static_cast<std::uint16_t>(bits == 0x7E01 ? 0x7FC1 : (bits & 0x8000) | 0x7F80);
    std::memset(end - block_bytes, 0, block_bytes);
    std::memcpy(end - 2, &bits, 2);
    return;
  }
  std::memcpy(end - block_bytes + 2 * (num_block_scales(source.format) - 1), &bits, 2);
}

}  // namespace

TEST(packing, many_matrices_are_what_each_is_alone) {
  std::mt19937 random(1);
  for (std::size_t threads : {1U, 2U, 3U}) {
    Context context(threads, detect_instruction_set());
    for (std::size_t rows : {1U, 16U, 50U, 4096U}) {
      const std::vector<RandomSource> sources = sources_of_every_format(rows, random);
      std::vector<std::vector<MatrixSource>> matrices = alone(sources);
      matrices.push_back({sources[3].source(), sources[4].source(), sources[4].source()});  // two formats in one matrix

      Packing packing(matrices, context);
      while (!packing.help(1)) {
      }
      const std::vector<PackedMatrix> packed = packing.finish();

      CHECK(packed.size() == matrices.size() && !packing.not_finite());
      for (std::size_t i = 0; i < packed.size(); ++i) check_equal(packed[i], PackedMatrix(matrices[i], context));
    }
  }
}

TEST(packing, the_first_part_with_a_value_that_is_not_finite_is_told) {
  std::mt19937 random(2);
  Context context(2, detect_instruction_set());
  for (std::size_t bad = 0; bad < std::size(kAllFormats); ++bad) {
    for (std::uint16_t bits : kNotFinite) {
      for (std::size_t row : {0U, 17U, 49U}) {
        std::vector<RandomSource> sources = sources_of_every_format(50, random);
        spoil(sources[bad], row, bits);
        std::vector<std::vector<MatrixSource>> matrices = alone(sources);
        matrices.insert(matrices.begin(), {sources[0].source(), sources[bad].source()});
        if (bad != 0) matrices.insert(matrices.begin(), {sources[0].source()});
        Packing packing(matrices, context);

        packing.finish();

        const std::optional<Packing::Place> place = packing.not_finite();
        CHECK(place.has_value());
        CHECK(place->matrix == (bad == 0 ? 0 : 1) && place->part == (bad == 0 ? 0 : 1));
      }
    }
  }
}

TEST(packing, one_that_nobody_waits_for_ends) {
  std::mt19937 random(3);
  Context context(2, detect_instruction_set());
  const std::vector<RandomSource> sources = sources_of_every_format(4096, random);
  for (int i = 0; i < 20; ++i) Packing(alone(sources), context);
  Packing(std::vector<std::vector<MatrixSource>>(), context).finish();
}

TEST(packing, what_does_not_fit_is_refused_before_anything_is_packed) {
  std::mt19937 random(4);
  Context context(1, InstructionSet::kScalar);
  const RandomSource source = random_source(SourceFormat::kF32, 4, 64, random);
  const std::int32_t too_high[] = {0, 1, 2, 4};
  const std::vector<std::vector<MatrixSource>> without_parts = {{source.source()}, {}},
                                               without_row = {{source.source(too_high)}};

  CHECK_THROWS(Packing(without_parts, context), std::invalid_argument);
  CHECK_THROWS(Packing(without_row, context), std::invalid_argument);
}
