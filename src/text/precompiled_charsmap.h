#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode_text.h"

namespace pardiff {

/// SentencePiece's table of replacements: a double-array trie of the strings to replace, then their replacements.
class PrecompiledCharsmap {
 public:
  /// Replaces nothing.
  PrecompiledCharsmap() = default;
  /// Throws: CheckpointError naming `file` if the table is damaged.
  PrecompiledCharsmap(std::string_view bytes, const std::string& file);

  /// `text` with its replacements, found as the reference finds them: a grapheme cluster of at most 5 bytes that starts
  /// with a string of the table becomes that string's replacement, other clusters are replaced character by character.
  /// Origins are moved by `origin`.
  DerivedText normalise(std::string_view text, std::size_t origin) const;

 private:
  std::optional<std::string_view> replacement_of_prefix(std::string_view text) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;  // each ends with a zero byte
};

}  // namespace pardiff
