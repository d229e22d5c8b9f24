#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_trie.h"

namespace pardiff {

/// A string that a tokenizer takes as one token wherever it stands, such as "<|endoftext|>".
struct AddedToken {
  std::string content;
  int32_t id = 0;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  struct Match {
    std::size_t begin, end;
    int32_t id;
  };
  /// The leftmost token at or after `from`; of those that start there, the longest.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

  /// Calls `take_token(Match)` for each token in `text` and `take_text(begin, end)` for what lies between, in order.
  template <typename TakeToken, typename TakeText>
  void split(std::string_view text, const TakeToken& take_token, const TakeText& take_text) const {
    std::size_t position = 0;
    while (const auto match = find(text, position)) {
      if (match->begin > position) take_text(position, match->begin);
      take_token(*match);
      position = match->end;
    }
    if (position < text.size()) take_text(position, text.size());
  }

 private:
  ByteTrie contents_;
};

}  // namespace pardiff
