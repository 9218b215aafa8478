#include "foreword/vocabulary.h"

#include <bit>
#include <cstring>

namespace foreword {
namespace {

constexpr std::size_t kLengthBytes = 8;

// A polynomial over the bytes, modulo the prime 2^61 - 1, at a secret point: two texts of n bytes collide for at most n
// of all points.
class Hash {
 public:
  explicit Hash(std::uint64_t secret) : point_((secret + 256) % kPrime) {}

  void add(std::string_view text) {
    for (const char c : text) {
      __extension__ using Wide = unsigned __int128;
      const Wide product = static_cast<Wide>(value_) * point_ + static_cast<unsigned char>(c) + 1;
      const std::uint64_t folded =
          static_cast<std::uint64_t>(product & kPrime) + static_cast<std::uint64_t>(product >> 61);
      value_ = folded >= kPrime ? folded - kPrime : folded;
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
  std::uint64_t point_, value_ = 0;
};

// Texts that are looked up by a hash and in two pieces.
class TextTable {
 public:
  TextTable(std::size_t size, std::uint64_t secret) : secret_(secret), slots_(std::bit_ceil(2 * size + 2)) {}

  void insert(std::string_view text, bool is_plain) {
    Hash hash(secret_);
    hash.add(text);
    Slot& slot = find(hash.value(), text, {});
    if (slot.text.data() == nullptr) slot = {hash.value(), text, is_plain};
    slot.is_plain = slot.is_plain && is_plain;
  }

  bool has_plain(const Hash& hash, std::string_view left, std::string_view right) {
    const Slot& slot = find(hash.value(), left, right);
    return slot.text.data() != nullptr && slot.is_plain;
  }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::string_view text;  // null in an empty slot
    bool is_plain = false;
  };

  Slot& find(std::uint64_t hash, std::string_view left, std::string_view right) {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
      Slot& slot = slots_[i];
      if (slot.text.data() == nullptr) return slot;
      if (slot.hash == hash && slot.text.size() == left.size() + right.size() && slot.text.starts_with(left) &&
          slot.text.ends_with(right)) {
        return slot;
      }
    }
  }

  std::uint64_t secret_;
  std::vector<Slot> slots_;
};

// The next text, and the rest behind its zero byte.
std::string_view take_text(std::string_view& rest, bool& is_last) {
  const std::size_t end = rest.find('\0');
  const std::string_view text = rest.substr(0, end);
  is_last = end == std::string_view::npos;
  rest.remove_prefix(is_last ? rest.size() : end + 1);
  return text;
}

std::uint64_t num_characters(std::string_view text) {
  std::uint64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  return count;
}

}  // namespace

std::vector<std::int64_t> string_starts(std::span<const std::uint8_t> data, std::size_t count) {
  std::vector<std::int64_t> starts;
  std::size_t position = 0;
  while (starts.size() < count && data.size() - position >= kLengthBytes) {
    std::uint64_t length = 0;
    for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | data[position + i];
    starts.push_back(static_cast<std::int64_t>(position));
    position += kLengthBytes;
    if (length > data.size() - position) return starts;
    position += length;
  }
  if (starts.size() == count) starts.push_back(static_cast<std::int64_t>(position));
  return starts;
}

std::optional<CutMerges> cut_merges(std::string_view tokens, std::span<const std::uint8_t> is_plain,
                                    std::string_view lines, std::uint64_t secret) {
  TextTable table(is_plain.size(), secret);
  bool is_last = false;
  for (std::size_t i = 0; i < is_plain.size(); ++i) {
    if (is_last) return std::nullopt;
    table.insert(take_text(tokens, is_last), is_plain[i] != 0);
  }
  if (!is_last) return std::nullopt;
  CutMerges cut;
  cut.halves.reserve(lines.size());
  for (is_last = false; !is_last;) {
    const std::string_view line = take_text(lines, is_last);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) return std::nullopt;
    const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
    Hash of_left(secret), of_right(secret);
    of_left.add(left);
    of_right.add(right);
    Hash of_both = of_left;
    of_both.add(right);
    if (!table.has_plain(of_left, left, {}) || !table.has_plain(of_right, right, {}) ||
        !table.has_plain(of_both, left, right)) {
      return std::nullopt;
    }
    cut.lengths.push_back(num_characters(left));
    cut.lengths.push_back(num_characters(right));
    cut.halves.append(left).append(right);
  }
  return cut;
}

}  // namespace foreword
