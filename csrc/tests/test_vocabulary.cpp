// Strings behind one another, and merges out of tokens, held to slow ways of saying the same.
#include "foreword/vocabulary.h"

#include <map>
#include <random>

#include "check.h"

using namespace foreword;

namespace {

void append(std::vector<std::uint8_t>& data, std::uint64_t length, std::string_view text) {
  for (int i = 0; i < 8; ++i) data.push_back(static_cast<std::uint8_t>(length >> (8 * i)));
  data.insert(data.end(), text.begin(), text.end());
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (std::size_t i = 0; i < texts.size(); ++i) (i == 0 ? all : all += '\0') += texts[i];
  return all;
}

// By a map of texts, one merge at a time.
bool all_plain(const std::vector<std::string>& tokens, const std::vector<std::uint8_t>& is_plain,
               const std::vector<std::string>& lines) {
  std::map<std::string, bool> plain;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto [at, is_new] = plain.try_emplace(tokens[i], is_plain[i] != 0);
    if (!is_new) at->second = at->second && is_plain[i] != 0;
  }
  for (const std::string& line : lines) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) return false;
    const std::string left = line.substr(0, space), right = line.substr(space + 1);
    for (const std::string& text : {left, right, left + right}) {
      const auto at = plain.find(text);
      if (at == plain.end() || !at->second) return false;
    }
  }
  return true;
}

}  // namespace

TEST(vocabulary, strings_begin_where_they_were_written_and_end_where_the_last_does) {
  std::vector<std::uint8_t> data;
  append(data, 3, "abc");
  append(data, 0, "");
  append(data, 2, std::string_view("\0\0", 2));

  CHECK((string_starts(data, 3) == std::vector<std::int64_t>{0, 11, 19, 29}));
  CHECK((string_starts(data, 2) == std::vector<std::int64_t>{0, 11, 19}));
  CHECK((string_starts(data, 0) == std::vector<std::int64_t>{0}));
  CHECK((string_starts(data, 4) == std::vector<std::int64_t>{0, 11, 19}));
}

TEST(vocabulary, a_string_past_the_end_is_the_last_to_be_told) {
  for (std::uint64_t length : {std::uint64_t{4}, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    std::vector<std::uint8_t> data;
    append(data, 1, "a");
    append(data, length, "abc");
    append(data, 1, "a");
    data.resize(20);

    CHECK((string_starts(data, 3) == std::vector<std::int64_t>{0, 9}));
  }
  const std::vector<std::uint8_t> no_length(7);
  CHECK(string_starts(no_length, 1).empty());
}

TEST(vocabulary, merges_are_cut_when_all_their_texts_are_plain_tokens_and_only_then) {
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
  std::size_t num_cut = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> tokens, lines;
    std::vector<std::uint8_t> is_plain;
    for (const char* text : {"a", "b", "ab", "\xC4\xA0",
                             "\xC4\xA0"
                             "a",
                             "aab", "", " ", "a b"}) {
      for (std::size_t copies = below(8) == 0 ? below(3) : 1; copies > 0; --copies) {
        tokens.emplace_back(text);
        is_plain.push_back(below(12) != 0);
      }
    }
    const std::vector<std::string> known = {"a b", "a ab", "\xC4\xA0 a", "a  b", " a", "ab", "b a", "a a", "a "};
    for (std::size_t i = 1 + below(3); i > 0; --i) lines.push_back(known[below(below(3) == 0 ? known.size() : 3)]);

    const auto cut = cut_merges(joined(tokens), is_plain, joined(lines), random());

    CHECK(cut.has_value() == (!tokens.empty() && all_plain(tokens, is_plain, lines)));
    if (!cut) continue;
    ++num_cut;
    std::string halves;
    std::vector<std::uint64_t> lengths;
    for (std::string line : lines) {
      const std::size_t space = line.find(' ');
      for (const std::string& half : {line.substr(0, space), line.substr(space + 1)}) {
        halves += half;
        std::uint64_t characters = 0;
        for (const char c : half) characters += c != '\xA0';
        lengths.push_back(characters);
      }
    }
    CHECK(cut->halves == halves && cut->lengths == lengths);
  }
  CHECK(num_cut > 200 && num_cut < 1800);
}

TEST(vocabulary, as_many_tokens_as_there_are_marks_or_nothing_is_cut) {
  const std::vector<std::uint8_t> three(3, 1);

  CHECK(cut_merges(joined({"a", "b", "ab"}), three, "a b", 5).has_value());
  CHECK(!cut_merges(joined({"a", "b"}), three, "a b", 5));
  CHECK(!cut_merges(joined({"a", "b", "ab", "c"}), three, "a b", 5));
  CHECK(!cut_merges("", {}, "", 5));
}
