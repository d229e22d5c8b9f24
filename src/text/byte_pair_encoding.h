#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/token_collector.h"

namespace pardiff {

/// Token texts and their ids, of a vocab.json.
using Vocabulary = std::unordered_map<std::string, int32_t>;

/// Throws: CheckpointError naming the file unless it holds one object of strings with distinct ids from 0 on.
Vocabulary read_vocabulary(const std::filesystem::path& path);

/// Byte-pair encoding over bytes, with a mark on the last byte of a word.
/// Source: Sennrich et al. 2016, arXiv 1508.07909; bytes as symbols as in Radford et al. 2019.
class BytePairEncoding {
 public:
  /// `unknown` is the id of a byte that the vocabulary lacks.
  /// Throws: CheckpointError naming the file if a line of merges.txt is not two tokens of the vocabulary whose
  /// concatenation is a third one.
  BytePairEncoding(const Vocabulary& vocabulary, const std::filesystem::path& merges, int32_t unknown);

  /// The tokens of one word, joined by always taking the earliest rule of the merge file that applies, leftmost first.
  /// Cost: n log n in the word's bytes.
  std::vector<Token> encode(std::string_view word) const;

 private:
  struct Merge {
    int32_t rank, id;
  };
  void read_merges(const Vocabulary& vocabulary, const std::filesystem::path& path);
  const Merge* find_merge(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_, last_byte_ids_;
  std::unordered_map<uint64_t, Merge> merges_;  // by both ids
};

}  // namespace pardiff
