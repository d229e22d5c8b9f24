#include "text/unicode_text.h"

#include <gtest/gtest.h>
#include <pardiff/core/error.h>

#include "support/failure.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

TEST(RequireUtf8, AcceptsEveryLengthOfCharacterAndItsLimits) {
  for (const std::string text : {"", "a", "\x7f\u0080\u07ff\u0800\uffff\U00010000\U0010ffff", "\ud7ff\ue000"}) {
    EXPECT_NO_THROW(require_utf8(text)) << text;
  }
  EXPECT_NO_THROW(require_utf8(std::string("a\0b", 3)));
}

TEST(RequireUtf8, NamesTheFirstByteThatStartsNoCharacterAndItsOffset) {
  const struct {
    std::string text, byte, offset;
  } cases[] = {
      {"abc\xff", "0xff", "offset 3 of 4"},
      {"é\x80", "0x80", "offset 2 of 3"},
      {"\xc0\x80", "0xc0", "offset 0 of 2"},
      {"a\xed\xa0\x80", "0xed", "offset 1 of 4"},
      {"a\xf4\x90\x80\x80", "0xf4", "offset 1 of 5"},
      {"ab\xe2\x82", "0xe2", "offset 2 of 4"},
      {"\xc3(", "0xc3", "offset 0 of 2"},
      {"\xf8\x88\x80\x80\x80", "0xf8", "offset 0 of 5"},
      {"\xe0\x80\x80", "0xe0", "offset 0 of 3"},
  };
  for (const auto& [text, byte, offset] : cases) {
    testing::expect_mentions(testing::refusal<UsageError>([&text = text] { require_utf8(text); }), {byte, offset});
  }
}

TEST(ToNfc, RemembersWhereEveryByteCameFrom) {
  const DerivedText derived = to_nfc("xe\u0301y", 10);
  EXPECT_EQ(derived.text, "xéy");
  EXPECT_EQ(derived.origins, (std::vector<std::size_t>{10, 11, 11, 14}));
}

TEST(ToNfc, LeavesMarksAloneThatAreNewerThanUnicode9) {
  EXPECT_EQ(to_nfc("a\u0345\u0301", 0).text, "\u00e1\u0345");
  EXPECT_EQ(to_nfc("a\u0345\u08d3", 0).text, "a\u0345\u08d3");  // U+08D3 is of Unicode 11
}

// Beyond 256 characters the marks are put in order before ICU sees them.
TEST(ToNfc, TreatsLongRunsOfMarksLikeShortOnes) {
  const std::string above = "\u0301", below = "\u0323", tibetan = "\u0f73";
  std::string marks, below_marks, above_marks;
  for (int i = 0; i < 300; ++i) {
    marks += above + below;
    below_marks += below;
    above_marks += above;
  }
  EXPECT_EQ(to_nfc("z" + marks, 0).text, to_nfc("z" + below, 0).text + below_marks.substr(below.size()) + above_marks);
  std::string vowels, expected_first, expected_second;
  for (int i = 0; i < 300; ++i) {
    vowels += tibetan;
    expected_first += "\u0f71";
    expected_second += "\u0f72";
  }
  EXPECT_EQ(to_nfc("\u0f40" + vowels, 0).text, "\u0f40" + expected_first + expected_second);
}

TEST(CharacterKinds, FollowUnicode16WhateverIcuKnows) {
  EXPECT_TRUE(is_letter(U'ß') && is_letter(U'漢') && is_letter(0x1C8A) && is_letter(0x2EBF0) && is_letter(0x323AF));
  EXPECT_FALSE(is_letter(0xA7CE) || is_letter(0x2EE5E) || is_letter(0x301) || is_letter(U'1') || is_letter(0x10FFFF));
  EXPECT_TRUE(is_number(U'1') && is_number(U'½') && is_number(U'Ⅷ') && is_number(0x1CCF0));
  EXPECT_FALSE(is_number(U'a') || is_number(0x1CCFA));
}

TEST(AppendLowerCase, LooksAtOneCharacterOnly) {
  std::string text;
  for (const char32_t character : {U'A', U'Σ', char32_t{0x130}, U'ẞ', char32_t{0xA7CB}, char32_t{0x16EA0}, U'漢'}) {
    append_lower_case(character, text);
  }
  EXPECT_EQ(text, "aσi\u0307ß\u0264\U00016ebb漢");
}

}  // namespace
}  // namespace pardiff
