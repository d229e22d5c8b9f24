#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace pardiff {

/// What a text encoder is given for one prompt.
struct TokenizedPrompt {
  /// As many as were asked for: the prompt's tokens, the end mark, padding.
  std::vector<int64_t> ids;
  /// The end of the prompt, in the caller's own spelling, from the first token that found no room; empty if all did.
  std::string cut_off;
};

}  // namespace pardiff
