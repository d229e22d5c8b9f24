#include "text/added_tokens.h"

#include <utility>

namespace pardiff {
namespace {

std::vector<std::pair<std::string, int32_t>> entries_of(const std::vector<AddedToken>& tokens) {
  std::vector<std::pair<std::string, int32_t>> entries;
  for (const AddedToken& token : tokens) {
    if (!token.content.empty()) entries.emplace_back(token.content, token.id);
  }
  return entries;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) : contents_(entries_of(tokens)) {}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    std::optional<Match> longest;
    ByteTrie::Node node = ByteTrie::kRoot;
    for (std::size_t end = begin; end < text.size();) {
      node = contents_.step(node, text[end++]);
      if (node == ByteTrie::kNowhere) break;
      if (contents_.value(node) >= 0) longest = Match{begin, end, contents_.value(node)};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace pardiff
