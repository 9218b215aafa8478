// The two passes over a vocabulary that Python takes longest for. Nothing in either is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foreword {

// Where strings begin that lie behind one another from the start of `data`, each as 8 bytes of its length, low byte
// first, and its bytes: at most `count` of them, and where the last ends when there are so many. Fewer when one starts
// or ends past the end of `data`; the last that starts within it is among them.
std::vector<std::int64_t> string_starts(std::span<const std::uint8_t> data, std::size_t count);

// Merges of a vocabulary, cut at the first space of each line: how many characters (of UTF-8) each half has, left and
// right in turn, and all halves' bytes.
struct CutMerges {
  std::vector<std::uint64_t> lengths;
  std::string halves;
};

// `tokens` and `lines` are texts with a zero byte between two. None unless there are as many tokens as there are of
// `is_plain`, and each line has a space and makes, out of two tokens, a third: all three plain, wherever they are
// listed. `secret` is an unknown number below 2^60, so that nobody can write a vocabulary that takes long.
std::optional<CutMerges> cut_merges(std::string_view tokens, std::span<const std::uint8_t> is_plain,
                                    std::string_view lines, std::uint64_t secret);

}  // namespace foreword
