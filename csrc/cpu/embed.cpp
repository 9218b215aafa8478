#include "matmul_stage.h"
#include "packed_value.h"

namespace foreword {
namespace {

// The part's output `row`, all inputs. Products of scale and code are exact, so only the sum with a minimum rounds.
void dequantise_row(const TileView& view, std::size_t row, float* out) {
  const std::uint8_t* tile = view.data + row / kTileOutputs * view.tile_bytes;
  const std::size_t lane = row % kTileOutputs;
  if (!is_quantised(view.format)) {
    for (std::size_t k = 0; k < view.cols; ++k) out[k] = wide_value(view.format, tile, k, lane);
    return;
  }
  for (std::size_t g = 0; g < view.cols / kGroup; ++g) {
    const GroupValues values = group_values(view.format, tile, g, lane);
    for (std::size_t k = 0; k < kGroup; ++k) {
      const float product = values.scale * static_cast<float>(values.codes[k]);
      out[g * kGroup + k] = view.format == SourceFormat::kQ8_0 ? product : product + values.minimum;
    }
  }
}

}  // namespace

void embed_stage(const Context& context, const PackedMatrix& table, const std::int32_t* token_ids,
                 std::size_t num_tokens, float* out, std::size_t out_stride, std::size_t thread) {
  const auto [begin, end] = split_evenly(num_tokens, thread, context.pool.num_threads());
  for (std::size_t t = begin; t < end; ++t) {
    std::size_t row = static_cast<std::size_t>(token_ids[t]);
    for (const PackedMatrix::Part& part : table.parts()) {
      if (row < part.view.rows) {
        dequantise_row(part.view, row, out + t * out_stride);
        break;
      }
      row -= part.view.rows;
    }
  }
}

void embed(Context& context, const PackedMatrix& table, std::span<const std::int32_t> token_ids, float* out,
           std::size_t out_stride) {
  context.pool.run([&](std::size_t thread) {
    embed_stage(context, table, token_ids.data(), token_ids.size(), out, out_stride, thread);
  });
}

}  // namespace foreword
