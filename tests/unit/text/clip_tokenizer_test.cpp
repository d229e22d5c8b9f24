#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/text/clip_tokenizer.h>

#include <chrono>

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

std::filesystem::path real_folder() { return testing::model_path("flux-shapes/tokenizer"); }

ClipTokenizer real_tokenizer() { return ClipTokenizer::from_pretrained(real_folder()); }

// The real tokenizer's files, to be damaged.
class ClipTokenizerFiles : public ::testing::Test {
 protected:
  ClipTokenizerFiles() {
    for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"}) {
      std::filesystem::copy_file(real_folder() / name, folder_ / name);
    }
  }
  std::string message() {
    return refusal<CheckpointError>([&] { ClipTokenizer::from_pretrained(folder_.path()); });
  }
  // The ids of `text` without the padding, cut after the end mark.
  Ids ids(const std::string& text) {
    auto all = ClipTokenizer::from_pretrained(folder_.path()).encode(text, 77).ids;
    while (all.size() > 1 && all[all.size() - 2] == all.back()) all.pop_back();
    return all;
  }

  TemporaryFolder folder_;
};

TEST(ClipTokenizer, KnowsItsLengthAndVocabulary) {
  EXPECT_EQ(real_tokenizer().model_max_length(), 77);
  EXPECT_EQ(real_tokenizer().vocab_size(), 49408);
}

TEST(ClipTokenizer, RefusesInvalidUtf8AndSaysWhere) {
  const auto tokenizer = real_tokenizer();
  expect_mentions(refusal<UsageError>([&] { tokenizer.encode("a caf\xe9 at night", 77); }), {"0xe9", "offset 5"});
}

TEST(ClipTokenizer, RefusesALengthWithoutRoomForStartAndEnd) {
  const auto tokenizer = real_tokenizer();
  for (const int length : {1, 0, -5}) {
    expect_mentions(refusal<UsageError>([&] { tokenizer.encode("a", length); }), {std::to_string(length)});
  }
  EXPECT_EQ(tokenizer.encode("a", 2).ids, (Ids{49406, 49407}));
}

TEST(ClipTokenizer, ReturnsTheTextThatFoundNoRoomInTheCallersSpelling) {
  const auto tokenizer = real_tokenizer();
  EXPECT_EQ(tokenizer.encode("A Big  Cat", 5).cut_off, "");
  EXPECT_EQ(tokenizer.encode("A Big  Cat", 4).cut_off, "Cat");
  EXPECT_EQ(tokenizer.encode("A Big  Cat's Hat ", 4).cut_off, "Cat's Hat");
  EXPECT_EQ(tokenizer.encode("a <|endoftext|> B", 3).cut_off, "<|endoftext|> B");
  EXPECT_EQ(tokenizer.encode("a \t<|endoftext|>\n É!", 4).cut_off, "É!");
  EXPECT_EQ(tokenizer.encode("x\u2003E\u0301t\u00e9", 3).cut_off, "E\u0301t\u00e9");
  EXPECT_EQ(tokenizer.encode("   ", 2).cut_off, "");
  // A character of several tokens is lost as a whole.
  EXPECT_EQ(tokenizer.encode("\U0001ffff", 3).cut_off, "\U0001ffff");
}

TEST(ClipTokenizer, EncodesAMegabyteQuickly) {
  const auto tokenizer = real_tokenizer();
  const std::size_t size = 1 << 20;
  std::string marks, emoji, sentences;
  while (marks.size() < size) marks += "\u0301\u0323";
  while (emoji.size() < size) emoji += "🦊";
  while (sentences.size() < size) sentences += "It's a cat, 4k. <|endoftext|";
  for (const auto& text : {std::string(size, 'x'), std::string(size, ' '), std::string(size, '<'), "a" + marks, emoji,
                           sentences, std::string(size, '\'')}) {
    const auto start = std::chrono::steady_clock::now();
    const auto prompt = tokenizer.encode(text, 77);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(prompt.ids.size(), 77u);
    EXPECT_LT(seconds.count(), 10) << text.substr(0, 20);  // what is not linear takes minutes
  }
}

TEST_F(ClipTokenizerFiles, WorkWithoutAConfig) {
  const auto with_config = ids("a cat");
  std::filesystem::remove(folder_ / "tokenizer_config.json");
  EXPECT_EQ(ids("a cat"), with_config);
}

// FLUX.1-dev's own config looks for the start mark in the normalised text, and spells tokens as objects.
TEST_F(ClipTokenizerFiles, FindTokensInNormalisedTextWhereTheConfigSaysSo) {
  put(folder_ / "tokenizer_config.json", R"({"added_tokens_decoder": {
      "49406": {"content": "<|startoftext|>", "lstrip": false, "normalized": true, "rstrip": false, "special": true},
      "49407": {"content": "<|endoftext|>", "normalized": false, "single_word": false}},
      "bos_token": {"content": "<|startoftext|>", "normalized": true}, "eos_token": "<|endoftext|>", "pad_token": null,
      "model_max_length": 77})");
  EXPECT_EQ(ids("a<|STARTOFTEXT|>!!<|EndOfText|>x"),
            (Ids{49406, 320, 49406, 1443, 27, 347, 40786, 4160, 91, 285, 343, 49407}));
  EXPECT_EQ(ids("a <|startoftext|>!! <|endoftext|>b"), (Ids{49406, 320, 49406, 748, 49407, 321, 49407}));
}

TEST_F(ClipTokenizerFiles, TakeTokensThatOnlyTheConfigKnows) {
  put(folder_ / "tokenizer_config.json",
      R"({"added_tokens_decoder": {"49408": {"content": "<concept>"}, "49409": {"content": "<concept>b>"}}})");
  EXPECT_EQ(ids("a <concept>b"), (Ids{49406, 320, 49408, 321, 49407}));
  EXPECT_EQ(ids("a <concept>b>"), (Ids{49406, 320, 49409, 49407}));
  EXPECT_EQ(ClipTokenizer::from_pretrained(folder_.path()).vocab_size(), 49410);
}

TEST_F(ClipTokenizerFiles, PadWithThePadToken) {
  put(folder_ / "tokenizer_config.json", R"({"pad_token": "!", "model_max_length": 1000000000000000019884624838656})");
  EXPECT_EQ(ClipTokenizer::from_pretrained(folder_.path()).encode("a", 4).ids, (Ids{49406, 320, 49407, 0}));
  EXPECT_EQ(ClipTokenizer::from_pretrained(folder_.path()).model_max_length(), 77);
}

TEST_F(ClipTokenizerFiles, AreMissingByName) {
  for (const char* name : {"vocab.json", "merges.txt"}) {
    const std::string content = content_of(folder_ / name);
    std::filesystem::remove(folder_ / name);
    expect_mentions(message(), {name});
    put(folder_ / name, content);
  }
}

TEST_F(ClipTokenizerFiles, RefuseADamagedVocabulary) {
  const std::string vocabulary = content_of(folder_ / "vocab.json");
  const struct {
    std::string content, fault;
  } cases[] = {
      {"", "JSON"},
      {vocabulary.substr(0, vocabulary.size() / 2), "JSON"},
      {"{}", "no tokens"},
      {"[1, 2]", "object"},
      {"3", "object"},
      {R"({"a": "1"})", R"("a" is "1")"},
      {R"({"a": 1.5})", "1.5"},
      {R"({"a": -1})", "-1"},
      {R"({"a": 4294967296})", "4294967296"},
      {R"({"a": {"b": 1}})", R"("a" is an object)"},
      {R"({"a": null})", "null"},
      {R"({"a": 1, "b": 1})", "id 1"},
      {R"({"a": 1, "a": 2})", "twice"},
      {"{\"a\xff\": 1}", "JSON"},
      {R"({"a": 1})", "<|startoftext|>"},
  };
  for (const auto& [content, fault] : cases) {
    put(folder_ / "vocab.json", content);
    expect_mentions(message(), {"vocab.json", fault});
  }
}

TEST_F(ClipTokenizerFiles, RefuseDamagedMerges) {
  const struct {
    std::string content, fault;
  } cases[] = {
      {"#version: 0.2\ni n\nth\n", "line 3"},
      {"#version: 0.2\n\ni n\n", "line 2"},
      {"i n g\n", "line 1"},
      {"i qqqqq\n", "qqqqq"},
      {"q q\nq zzq\n", "vocab.json"},
      {std::string("i n\n\0\0\0", 7), "line 2"},
  };
  for (const auto& [content, fault] : cases) {
    put(folder_ / "merges.txt", content);
    expect_mentions(message(), {"merges.txt", fault});
  }
}

// At a line's end too, where what is left is sound by itself.
TEST_F(ClipTokenizerFiles, RefuseMergesThatAreCutOff) {
  const std::string whole = content_of(folder_ / "merges.txt");
  std::vector<size_t> ends;  // of lines
  for (size_t i = 0; i + 1 < whole.size(); ++i) {
    if (whole[i] == '\n') ends.push_back(i + 1);
  }
  ASSERT_GT(ends.size(), 48000u);
  for (const size_t line :
       {size_t{0}, size_t{1}, size_t{2}, size_t{200}, size_t{20000}, ends.size() - 2, ends.size() - 1}) {
    put(folder_ / "merges.txt", whole.substr(0, ends[line]));
    expect_mentions(message(), {"merges.txt", "cut off", "after " + std::to_string(line) + " merges"});
  }
  put(folder_ / "merges.txt", "");
  expect_mentions(message(), {"merges.txt", "cut off", "after 0 merges"});
}

TEST_F(ClipTokenizerFiles, ReadMergesWithWindowsLineEnds) {
  const Ids expected = ids("a photo of a cat");
  std::string merges = content_of(folder_ / "merges.txt"), windows;
  for (const char c : merges) windows += c == '\n' ? "\r\n" : std::string(1, c);
  put(folder_ / "merges.txt", windows);
  EXPECT_EQ(ids("a photo of a cat"), expected);
}

TEST_F(ClipTokenizerFiles, RefuseADamagedConfig) {
  const struct {
    std::string content, fault;
  } cases[] = {
      {"{", "JSON"},
      {"[]", "array"},
      {R"({"bos_token": 3})", "bos_token is 3"},
      {R"({"bos_token": {"contents": "a"}})", "bos_token"},
      {R"({"eos_token": ""})", "eos_token"},
      {R"({"pad_token": "no such token"})", "no such token"},
      {R"({"model_max_length": "77"})", "model_max_length"},
      {R"({"model_max_length": 1})", "model_max_length is 1"},
      {R"({"model_max_length": -1e99})", "model_max_length"},
      {R"({"added_tokens_decoder": ["a"]})", "added_tokens_decoder"},
      {R"({"added_tokens_decoder": {"x": {"content": "a"}}})", R"("x")"},
      {R"({"added_tokens_decoder": {"-1": {"content": "a"}}})", R"("-1")"},
      {R"({"added_tokens_decoder": {"99999999999": {"content": "a"}}})", "99999999999"},
      {R"({"added_tokens_decoder": {"1": {}}})", "content"},
      {R"({"added_tokens_decoder": {"1": {"content": "a", "normalized": 1}}})", "normalized"},
      {R"({"added_tokens_decoder": {"1": {"content": "a", "single_word": true}}})", "single_word"},
      {"{\"bos_token\": \"\xff\"}", "UTF-8"},
  };
  for (const auto& [content, fault] : cases) {
    put(folder_ / "tokenizer_config.json", content);
    expect_mentions(message(), {fault});
    if (fault != "no such token") expect_mentions(message(), {"tokenizer_config.json"});
  }
}

}  // namespace
}  // namespace pardiff
