#include "text/unigram.h"

#include <algorithm>

#include "text/unicode_text.h"

namespace pardiff {
namespace {

constexpr std::size_t kUnreached = static_cast<std::size_t>(-1);

// The best way to reach a position: its last piece.
struct Reached {
  double score = 0;
  std::size_t begin = kUnreached;
  int32_t id = 0;
};

ByteTrie trie_of(const std::vector<std::pair<std::string, double>>& pieces) {
  std::vector<std::pair<std::string, int32_t>> entries;
  entries.reserve(pieces.size());
  for (const auto& [text, score] : pieces) entries.emplace_back(text, static_cast<int32_t>(entries.size()));
  return ByteTrie(std::move(entries));
}

}  // namespace

Unigram::Unigram(const std::vector<std::pair<std::string, double>>& pieces, int32_t unknown)
    : ids_(trie_of(pieces)), unknown_(unknown) {
  constexpr double kUnknownPenalty = 10;
  scores_.reserve(pieces.size());
  for (const auto& [text, score] : pieces) scores_.push_back(score);
  unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
}

std::vector<Token> Unigram::encode(std::string_view word) const {
  std::vector<Reached> reached(word.size() + 1);
  const auto offer = [&](std::size_t begin, std::size_t end, double score, int32_t id) {
    const double sum = score + reached[begin].score;
    if (reached[end].begin == kUnreached || sum > reached[end].score) reached[end] = {sum, begin, id};
  };
  for (std::size_t begin = 0, next = 0; begin < word.size(); begin = next) {
    next_character(word, next);
    bool covers_character = false;
    ByteTrie::Node node = ByteTrie::kRoot;
    for (std::size_t end = begin; end < word.size();) {
      node = ids_.step(node, word[end++]);
      if (node == ByteTrie::kNowhere) break;
      const int32_t id = ids_.value(node);
      if (id < 0) continue;
      offer(begin, end, scores_[static_cast<std::size_t>(id)], id);
      covers_character |= end == next;
    }
    if (!covers_character) offer(begin, next, unknown_score_, unknown_);
  }

  std::vector<Token> tokens;  // from the end
  for (std::size_t end = word.size(); end > 0; end = reached[end].begin) {
    const auto& [score, begin, id] = reached[end];
    if (id == unknown_ && !tokens.empty() && tokens.back().id == unknown_) {
      tokens.back().begin = begin;
    } else {
      tokens.push_back({id, begin});
    }
  }
  std::reverse(tokens.begin(), tokens.end());
  return tokens;
}

}  // namespace pardiff
