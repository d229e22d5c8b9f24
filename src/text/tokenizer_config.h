#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pardiff {

/// What a tokenizer takes from tokenizer_config.json. The values here are those of a file that does not say.
struct TokenizerConfig {
  struct AddedTokenEntry {
    std::string content;
    int32_t id;
    /// Looked for in the normalised text rather than in the prompt as given.
    bool is_normalised;
  };

  std::string bos_token, eos_token, unk_token, pad_token;
  int model_max_length = 0;
  int extra_ids = 0;
  std::vector<AddedTokenEntry> added_tokens;
};

/// `defaults`, overwritten by what tokenizer_config.json in `folder` says if it exists.
/// Throws: CheckpointError naming the file, the key and its value if the file cannot be used.
TokenizerConfig read_tokenizer_config(const std::filesystem::path& folder, const TokenizerConfig& defaults);

}  // namespace pardiff
