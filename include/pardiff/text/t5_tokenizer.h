#pragma once
#include <pardiff/text/tokenized_prompt.h>

#include <filesystem>
#include <memory>
#include <string_view>

namespace pardiff {

/// The tokenizer of T5 encoders: the likeliest split of each word under the unigram model of a SentencePiece file.
/// Its ids are those of transformers' T5Tokenizer for any UTF-8 text, special tokens inside a prompt included. Copies
/// share one vocabulary; all methods may be called from several threads.
class T5Tokenizer {
 public:
  /// Reads spiece.model, and tokenizer_config.json where there is one.
  /// Throws: CheckpointError naming the file that is missing or damaged.
  static T5Tokenizer from_pretrained(const std::filesystem::path& folder);

  /// The first `max_length` - 1 tokens of `text`, end mark, padding.
  /// Cost: time proportional to the length of the text.
  /// Throws: UsageError if `text` is not UTF-8 or `max_length` is below 1.
  TokenizedPrompt encode(std::string_view text, int max_length) const;

  /// The length that the checkpoint asks for: 512.
  int model_max_length() const;
  /// One more than the largest id that `encode` can give.
  int64_t vocab_size() const;
  /// Where its files are.
  const std::filesystem::path& folder() const { return folder_; }

 private:
  struct State;
  T5Tokenizer(std::shared_ptr<const State> state, std::filesystem::path folder)
      : state_(std::move(state)), folder_(std::move(folder)) {}
  std::shared_ptr<const State> state_;
  std::filesystem::path folder_;
};

}  // namespace pardiff
