// Kernels of one layer's shapes, run a given number of times, so that their instructions can be counted (count.py).
//   kernels CASE REPEATS        or `kernels list`
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention_cases.h"
#include "foreword/attention.h"
#include "foreword/matrix.h"
#include "packed_matrix.h"
#include "sources.h"

using namespace foreword;
using namespace foreword::test;

namespace {

using Work = std::function<void()>;

// A product of `rows` outputs and 768 inputs with `num_rows` rows of activations.
Work product(Context& context, SourceFormat format, std::size_t rows, std::size_t num_rows) {
  constexpr std::size_t kInputs = 768;  // whole blocks of every format
  std::mt19937 random(7);
  const RandomSource source = random_source(format, rows, kInputs, random);
  const MatrixSource part = source.source();
  auto matrix = std::make_shared<PackedMatrix>(std::span<const MatrixSource>{&part, 1}, context);
  auto x = std::make_shared<std::vector<float>>(random_floats(num_rows * kInputs, random));
  auto out = std::make_shared<std::vector<float>>(num_rows * rows);
  return [&context, matrix, x, out, num_rows, rows] {
    linear(context, x->data(), kInputs, num_rows, {}, *matrix, nullptr, false, out->data(), rows);
  };
}

// Attention of the last `num_queries` of `length` positions, 9 query heads over 3; the same for `streams` sequences
// that have all but their last block in common.
Work attention(Context& context, std::size_t length, std::size_t num_queries, KvDtype dtype, std::size_t streams = 1) {
  const Shape shape{9, 3, 64, 16, dtype};
  const std::size_t blocks = (length + shape.block - 1) / shape.block, stride = 15 * shape.dim;
  const Sequence sequence(shape, length, 11);
  auto pool = std::make_shared<Pool>(shape, blocks + streams - 1);
  auto tables = std::make_shared<std::vector<std::int32_t>>();
  auto starts = std::make_shared<std::vector<std::int32_t>>(1);
  for (std::size_t s = 0; s < streams; ++s) {
    for (std::size_t b = 0; b < blocks; ++b) tables->push_back(static_cast<std::int32_t>(b + 1 < blocks ? b : b + s));
    for (std::size_t p = 0; p < length; ++p) {
      const std::size_t block = static_cast<std::size_t>((*tables)[s * blocks + p / shape.block]);
      pool->write(block * shape.block + p % shape.block, sequence, p);
    }
    starts->push_back(starts->back() + static_cast<std::int32_t>(num_queries));
  }
  auto lens = std::make_shared<std::vector<std::int32_t>>(streams, static_cast<std::int32_t>(length));
  auto qkv = std::make_shared<std::vector<float>>(streams * num_queries * stride, 0.125f);
  auto out = std::make_shared<std::vector<float>>(streams * num_queries * shape.heads * shape.dim);
  return [=, &context] {
    AttentionArgs args{};
    args.qkv = qkv->data();
    args.num_sequences = streams;
    args.qkv_stride = stride;
    args.num_heads = shape.heads;
    args.block_tables = tables->data();
    args.max_blocks = blocks;
    args.query_start_loc = starts->data();
    args.context_lens = lens->data();
    args.scale = kScale;
    args.out = out->data();
    args.out_stride = shape.heads * shape.dim;
    paged_attention(context, args, pool->view());
  };
}

std::map<std::string, std::function<Work(Context&)>> cases() {
  std::map<std::string, std::function<Work(Context&)>> all;
  const std::pair<const char*, SourceFormat> formats[] = {{"q4_0", SourceFormat::kQ4_0},
                                                          {"q4_1", SourceFormat::kQ4_1},
                                                          {"q4_k", SourceFormat::kQ4_K},
                                                          {"q8_0", SourceFormat::kQ8_0},
                                                          {"f32", SourceFormat::kF32}};
  for (const auto& [name, format] : formats) {
    for (const std::size_t rows : {1, 16, 64}) {
      all[std::string("product ") + name + " rows " + std::to_string(rows)] =
          [format = format, rows](Context& context) { return product(context, format, 512, rows); };
    }
  }
  all["attention 1 of 2048"] = [](Context& context) { return attention(context, 2048, 1, KvDtype::kF16); };
  all["attention 1 of 2048, int8"] = [](Context& context) { return attention(context, 2048, 1, KvDtype::kInt8); };
  all["attention 1 of 2048, int16"] = [](Context& context) { return attention(context, 2048, 1, KvDtype::kInt16); };
  all["attention 16 streams of 1040, shared"] = [](Context& context) {
    return attention(context, 1040, 1, KvDtype::kF16, 16);
  };
  all["attention 64 of 512, int16"] = [](Context& context) { return attention(context, 512, 64, KvDtype::kInt16); };
  all["attention 64 of 512"] = [](Context& context) { return attention(context, 512, 64, KvDtype::kF16); };
  return all;
}

}  // namespace

int main(int count, char** arguments) {
  const auto all = cases();
  if (count == 2 && std::strcmp(arguments[1], "list") == 0) {
    for (const auto& [name, make] : all) std::printf("%s\n", name.c_str());
    return 0;
  }
  const auto found = count == 3 ? all.find(arguments[1]) : all.end();
  if (found == all.end()) {
    std::fprintf(stderr, "kernels CASE REPEATS, or kernels list\n");
    return 2;
  }
  Context context(1, detect_instruction_set());
  const Work work = found->second(context);
  for (int repeat = std::atoi(arguments[2]); repeat > 0; --repeat) work();
  return 0;
}
