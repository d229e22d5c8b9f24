#pragma once
#include <pardiff/text/tokenized_prompt.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pardiff {

/// A token and the offset in its text at which it begins.
struct Token {
  int32_t id;
  std::size_t begin;
};

/// Takes the tokens of a prompt in order until there is no room, and remembers where the first one too many began.
class TokenCollector {
 public:
  TokenCollector(std::vector<int64_t> start, std::size_t room) : ids_(std::move(start)), limit_(ids_.size() + room) {}

  void add(int64_t id, std::size_t origin) {
    if (ids_.size() < limit_) {
      ids_.push_back(id);
    } else if (!cut_at_) {
      cut_at_ = origin;
    }
  }
  /// Nothing added from now on changes the result.
  bool is_settled() const { return cut_at_.has_value(); }

  TokenizedPrompt finish(std::string_view prompt, int64_t end_id, int64_t pad_id, std::size_t length) && {
    constexpr const char* kWhiteSpace = " \t\n\r\f\v";
    ids_.push_back(end_id);
    ids_.resize(length, pad_id);
    std::string_view lost = prompt.substr(cut_at_.value_or(prompt.size()));
    lost.remove_prefix(std::min(lost.find_first_not_of(kWhiteSpace), lost.size()));
    lost.remove_suffix(lost.size() - (lost.find_last_not_of(kWhiteSpace) + 1));
    return {std::move(ids_), std::string(lost)};
  }

 private:
  std::vector<int64_t> ids_;
  std::size_t limit_;
  std::optional<std::size_t> cut_at_;
};

}  // namespace pardiff
