#include <gtest/gtest.h>
#include <pardiff/text/clip_tokenizer.h>
#include <pardiff/text/t5_tokenizer.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/golden.h"

namespace pardiff {
namespace {

using Ids = std::vector<int64_t>;

nlohmann::json rows_of(const std::string& name) {
  std::ifstream stream(testing::data_path(name));
  return nlohmann::json::parse(stream);
}

const ClipTokenizer& clip() {
  static const auto tokenizer = ClipTokenizer::from_pretrained(testing::model_path("flux-shapes/tokenizer"));
  return tokenizer;
}
const T5Tokenizer& t5() {
  static const auto tokenizer = T5Tokenizer::from_pretrained(testing::model_path("flux-shapes/tokenizer_2"));
  return tokenizer;
}

Ids padded(Ids ids, std::size_t length, int64_t pad) {
  ids.resize(length, pad);
  return ids;
}

TEST(ClipTokenizer, GivesTheReferencesIdsOfTheGoldenPrompts) {
  const auto rows = rows_of("golden/tokenizer.json");
  ASSERT_GE(rows.size(), 12u);
  for (const auto& row : rows) {
    const auto prompt = row["prompt"].get<std::string>();
    EXPECT_EQ(clip().encode(prompt, 77).ids, row["clip"].get<Ids>()) << row["prompt"];
  }
}

TEST(T5Tokenizer, GivesTheReferencesIdsOfTheGoldenPrompts) {
  for (const auto& row : rows_of("golden/tokenizer.json")) {
    const auto prompt = row["prompt"].get<std::string>();
    for (const int length : {32, 128, 512}) {
      EXPECT_EQ(t5().encode(prompt, length).ids, row["t5_" + std::to_string(length)].get<Ids>())
          << row["prompt"] << " in " << length;
    }
  }
}

// A string or more for every rule that decides ids, and random ones of all scripts: scripts/make_tokenizer_data.py.
TEST(ClipTokenizer, GivesTheReferencesIdsOfAnyUnicodeText) {
  const auto rows = rows_of("tokenizer_unicode.json");
  ASSERT_GE(rows.size(), 400u);
  for (const auto& row : rows) {
    EXPECT_EQ(clip().encode(row["text"].get<std::string>(), 77).ids, padded(row["clip"].get<Ids>(), 77, 49407))
        << row["text"].dump(-1, ' ', true);
  }
}

TEST(T5Tokenizer, GivesTheReferencesIdsOfAnyUnicodeText) {
  for (const auto& row : rows_of("tokenizer_unicode.json")) {
    EXPECT_EQ(t5().encode(row["text"].get<std::string>(), 512).ids, padded(row["t5"].get<Ids>(), 512, 0))
        << row["text"].dump(-1, ' ', true);
  }
}

TEST(Tokenizers, GiveTheSameIdsAtEveryLengthUpToTheCut) {
  const std::string prompt = "a naïve astronaut riding a pneumonoultramicroscopic horse, 4k <|endoftext|> </s> 🦊";
  const auto all_clip = clip().encode(prompt, 77).ids;
  const auto all_t5 = t5().encode(prompt, 128).ids;
  for (int length = 2; length < 30; ++length) {
    const auto size = static_cast<std::ptrdiff_t>(length) - 1;
    Ids expected_clip(all_clip.begin(), all_clip.begin() + size), expected_t5(all_t5.begin(), all_t5.begin() + size);
    expected_clip.push_back(49407);
    expected_t5.push_back(1);
    EXPECT_EQ(clip().encode(prompt, length).ids, expected_clip) << length;
    EXPECT_EQ(t5().encode(prompt, length).ids, expected_t5) << length;
  }
}

}  // namespace
}  // namespace pardiff
