#pragma once
#include <pardiff/text/tokenized_prompt.h>

#include <filesystem>
#include <memory>
#include <string_view>

namespace pardiff {

/// The tokenizer of CLIP text encoders: byte-level byte-pair encoding of the NFC-normalised, lower-cased text.
/// Its ids are those of transformers' CLIPTokenizer for any UTF-8 text, special tokens inside a prompt included. Copies
/// share one vocabulary; all methods may be called from several threads.
class ClipTokenizer {
 public:
  /// Reads vocab.json and merges.txt, and tokenizer_config.json where there is one.
  /// Throws: CheckpointError naming the file that is missing or damaged.
  static ClipTokenizer from_pretrained(const std::filesystem::path& folder);

  /// Start mark, the first `max_length` - 2 tokens of `text`, end mark, padding.
  /// Cost: time proportional to n log n in the length of the text's longest word.
  /// Throws: UsageError if `text` is not UTF-8 or `max_length` is below 2.
  TokenizedPrompt encode(std::string_view text, int max_length) const;

  /// The length that the checkpoint asks for: 77.
  int model_max_length() const;
  /// One more than the largest id that `encode` can give.
  int64_t vocab_size() const;
  /// Where its files are.
  const std::filesystem::path& folder() const { return folder_; }

 private:
  struct State;
  ClipTokenizer(std::shared_ptr<const State> state, std::filesystem::path folder)
      : state_(std::move(state)), folder_(std::move(folder)) {}
  std::shared_ptr<const State> state_;
  std::filesystem::path folder_;
};

}  // namespace pardiff
