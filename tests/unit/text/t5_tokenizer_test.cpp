#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/text/t5_tokenizer.h>

#include <bit>
#include <chrono>
#include <limits>

#include "support/failure.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

using testing::content_of;
using testing::expect_mentions;
using testing::put;
using testing::refusal;
using testing::TemporaryFolder;
using Ids = std::vector<int64_t>;

std::filesystem::path real_folder() { return testing::model_path("flux-shapes/tokenizer_2"); }

T5Tokenizer real_tokenizer() { return T5Tokenizer::from_pretrained(real_folder()); }

// The wire format of spiece.model, as far as tests write it.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string field(int number, uint64_t value) { return varint(static_cast<uint64_t>(number) << 3) + varint(value); }
std::string field(int number, float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  std::string bytes = varint(static_cast<uint64_t>(number) << 3 | 5);
  for (int i = 0; i < 4; ++i, bits >>= 8) bytes += static_cast<char>(bits & 0xff);
  return bytes;
}
std::string piece(const std::string& text, float score, int type = 1) {
  return field(1, field(1, text) + field(2, score) + field(3, static_cast<uint64_t>(type)));
}

// A model of few pieces that every test extends.
std::string small_model() {
  return piece("<pad>", 0, 3) + piece("</s>", 0, 3) + piece("<unk>", 0, 2) + piece("▁", -2) + piece("a", -3) +
         piece("▁a", -3.5f) + piece("b", -4);
}

class T5TokenizerFile : public ::testing::Test {
 protected:
  void write(const std::string& model) { put(folder_ / "spiece.model", model); }
  T5Tokenizer read() { return T5Tokenizer::from_pretrained(folder_.path()); }
  std::string message() {
    return refusal<CheckpointError>([&] { read(); });
  }
  // The ids of `text` up to the end mark.
  Ids ids(const std::string& text) {
    auto all = read().encode(text, 64).ids;
    while (all.size() > 1 && all.back() == 0) all.pop_back();
    return all;
  }

  TemporaryFolder folder_;
};

TEST(T5Tokenizer, KnowsItsLengthAndVocabulary) {
  EXPECT_EQ(real_tokenizer().model_max_length(), 512);
  EXPECT_EQ(real_tokenizer().vocab_size(), 32100);
}

TEST(T5Tokenizer, RefusesInvalidUtf8AndSaysWhere) {
  const auto tokenizer = real_tokenizer();
  expect_mentions(refusal<UsageError>([&] { tokenizer.encode("</s> \xf0\x9f\xa6", 77); }), {"0xf0", "offset 5 of 8"});
}

TEST(T5Tokenizer, RefusesALengthWithoutRoomForTheEnd) {
  const auto tokenizer = real_tokenizer();
  for (const int length : {0, -1}) {
    expect_mentions(refusal<UsageError>([&] { tokenizer.encode("a", length); }), {std::to_string(length)});
  }
  EXPECT_EQ(tokenizer.encode("a", 1).ids, Ids{1});
}

TEST(T5Tokenizer, ReturnsTheTextThatFoundNoRoomInTheCallersSpelling) {
  const auto tokenizer = real_tokenizer();
  EXPECT_EQ(tokenizer.encode("a red cat", 4).cut_off, "cat");
  EXPECT_EQ(tokenizer.encode("a red cat", 5).cut_off, "");
  EXPECT_EQ(tokenizer.encode("red\u00a0 Cat ﬁnds \n", 2).cut_off, "Cat ﬁnds");
  EXPECT_EQ(tokenizer.encode("red <extra_id_1> Cat", 2).cut_off, "<extra_id_1> Cat");
  EXPECT_EQ(tokenizer.encode("red <extra_id_1> Cat", 3).cut_off, "Cat");
  EXPECT_EQ(tokenizer.encode("red 漢字", 2).cut_off, "漢字");
  EXPECT_EQ(tokenizer.encode("", 1).cut_off, "");
}

TEST(T5Tokenizer, EncodesAMegabyteQuickly) {
  const auto tokenizer = real_tokenizer();
  const std::size_t size = 1 << 20;
  std::string marks, kanji, sentences;
  while (marks.size() < size) marks += "\u0301\u0323";
  while (kanji.size() < size) kanji += "漢";
  while (sentences.size() < size) sentences += "It's a cat, 4k. <extra_id_";
  for (const auto& text :
       {std::string(size, 'x'), std::string(size, ' '), std::string(size, '<'), "a" + marks, kanji, sentences}) {
    const auto start = std::chrono::steady_clock::now();
    const auto prompt = tokenizer.encode(text, 512);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(prompt.ids.size(), 512u);
    EXPECT_LT(seconds.count(), 10) << text.substr(0, 20);
  }
}

TEST_F(T5TokenizerFile, NeedsNoTableOfReplacementsAndNoConfig) {
  write(small_model());
  EXPECT_EQ(ids("a ab bc￥ </s>b<extra_id_0>"), (Ids{5, 5, 6, 3, 6, 2, 1, 3, 6, 106, 1}));
  EXPECT_EQ(read().vocab_size(), 107);
}

TEST_F(T5TokenizerFile, CountsFillInMarksAsTheConfigSays) {
  write(small_model());
  put(folder_ / "tokenizer_config.json", R"({"extra_ids": 2})");
  EXPECT_EQ(read().vocab_size(), 9);
  EXPECT_EQ(ids("<extra_id_0><extra_id_1>"), (Ids{8, 7, 1}));
  put(folder_ / "tokenizer_config.json", R"({"extra_ids": -1})");
  expect_mentions(message(), {"tokenizer_config.json", "extra_ids is -1"});
}

TEST_F(T5TokenizerFile, TakesUserDefinedPiecesWhole) {
  write(small_model() + piece("aba", -50, 4));
  EXPECT_EQ(ids("aaba"), (Ids{5, 7, 1}));
  write(small_model() + piece("aba", -50));
  EXPECT_EQ(ids("aaba"), (Ids{5, 4, 6, 4, 1}));
}

TEST_F(T5TokenizerFile, StartsAWordAtEveryWordMarkInTheText) {
  write(small_model() + piece("a▁b", -0.5f));
  EXPECT_EQ(ids("▁a▁b ▁▁"), (Ids{5, 3, 6, 3, 3, 1}));
}

TEST_F(T5TokenizerFile, TakesAnUnknownCharacterForTenLessThanTheUnlikeliestPiece) {
  write(small_model() + piece("pq", -6) + piece("r", -6) + piece("qr", -1));
  EXPECT_EQ(ids("pqr"), (Ids{3, 7, 8, 1}));  // -12, where an unknown p and "qr" have -17
}

TEST_F(T5TokenizerFile, IsMissingByName) { expect_mentions(message(), {"spiece.model"}); }

TEST_F(T5TokenizerFile, IsRefusedWhereverItIsCut) {
  const std::string model = content_of(real_folder() / "spiece.model");
  const std::vector<std::size_t> sizes = {0, 1, 5, 100, model.size() / 2, model.size() - 100'000, model.size() - 1};
  for (const std::size_t size : sizes) {
    write(model.substr(0, size));
    expect_mentions(message(), {"spiece.model"});
  }
}

TEST_F(T5TokenizerFile, IsRefusedWithDamagedPieces) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    std::string model, fault;
  } cases[] = {
      {small_model() + piece("", -1), "piece 7"},
      {small_model() + piece("x", nan), R"(piece 7, "x", has no finite)"},
      {small_model() + piece("a", -1), R"("a", stands there twice)"},
      {small_model() + piece("\xff", -1), "UTF-8"},
      {small_model() + field(1, uint64_t{5}), "field 1"},
      {small_model() + field(1, field(2, "abcd")), "field 2"},
      {small_model() + field(2, field(3, uint64_t{2})), "type 2"},
      {piece("a", -1), "</s>"},
      {small_model() + std::string(12, '\xff'), "number without an end"},
      {small_model() + "\x0b", "unknown kind 3"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-lfs"},
  };
  for (const auto& [model, fault] : cases) {
    write(model);
    expect_mentions(message(), {"spiece.model", fault});
  }
}

TEST_F(T5TokenizerFile, IsRefusedWithACutTableOfReplacements) {
  for (const std::string& table : {std::string("\1"), std::string("\x8\0\0\0abcd", 8), std::string("\3\0\0\0abc", 7),
                                   std::string("\0\0\0\0", 4), std::string("\4\0\0\0abcd\xff", 9)}) {
    write(small_model() + field(3, field(2, table)));
    expect_mentions(message(), {"spiece.model", "table of replacements"});
  }
}

// A table may point anywhere; whatever it says, reading stays inside of it.
TEST_F(T5TokenizerFile, SurvivesANonsensicalTableOfReplacements) {
  uint32_t state = 1;
  for (int round = 0; round < 50; ++round) {
    std::string table("\0\4\0\0", 4);
    for (int i = 0; i < 1024; ++i) {
      state = state * 1664525 + 1013904223;
      // Labels that match the place make the walk go on.
      table += i % 4 == 0 ? static_cast<char>(i / 4) : i % 4 == 3 ? '\0' : static_cast<char>(state >> 24);
    }
    write(small_model() + field(3, field(2, table + "xyz")));
    EXPECT_EQ(read().encode("a b c é 漢 \xf0\x9f\xa6\x8a", 32).ids.size(), 32u);
  }
}

}  // namespace
}  // namespace pardiff
