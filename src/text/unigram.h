#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/byte_trie.h"
#include "text/token_collector.h"

namespace pardiff {

/// A unigram language model over pieces of words.
/// Source: Kudo 2018, arXiv 1804.10959.
class Unigram {
 public:
  /// Texts and log probabilities of the pieces by id; `unknown` is the id of what no piece covers.
  Unigram(const std::vector<std::pair<std::string, double>>& pieces, int32_t unknown);

  /// The likeliest split of `word`; neighbouring unknown characters are one token.
  /// Precision: scores are added in double; of equal sums the longer last piece wins.
  /// Cost: the word's bytes times the length of the longest piece.
  std::vector<Token> encode(std::string_view word) const;

 private:
  ByteTrie ids_;
  std::vector<double> scores_;
  double unknown_score_;
  int32_t unknown_;
};

}  // namespace pardiff
