#include "text/precompiled_charsmap.h"

#include <pardiff/core/check.h>

#include "text/grapheme_cluster.h"

namespace pardiff {
namespace {

// The fields of a unit of a Darts double array (Yata's darts-clone).
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) == 1; }
uint32_t value_of(uint32_t unit) { return unit & 0x7fffffff; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000ff; }
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

}  // namespace

PrecompiledCharsmap::PrecompiledCharsmap(std::string_view bytes, const std::string& file) {
  if (bytes.empty()) return;
  const auto check_table = [&](bool condition, const char* fault) {
    check<CheckpointError>(condition, "cannot use ", file, ": its table of replacements ", fault,
                           ". Fetch the file again.");
  };
  check_table(bytes.size() >= 4, "is cut");
  const std::size_t trie_size = little_endian(bytes);
  bytes.remove_prefix(4);
  check_table(trie_size % 4 == 0 && trie_size >= 4 && trie_size <= bytes.size(), "is cut");
  trie_.reserve(trie_size / 4);
  for (std::size_t i = 0; i < trie_size; i += 4) trie_.push_back(little_endian(bytes.substr(i)));
  replacements_ = bytes.substr(trie_size);
  check_table(is_utf8(replacements_), "is not UTF-8");
}

// The replacement of the shortest string of the table that `text` starts with.
std::optional<std::string_view> PrecompiledCharsmap::replacement_of_prefix(std::string_view text) const {
  if (trie_.empty()) return std::nullopt;
  std::size_t node = offset_of(trie_[0]);
  for (const char c : text) {
    const auto label = static_cast<unsigned char>(c);
    if (label == 0) return std::nullopt;
    node ^= label;
    if (node >= trie_.size() || label_of(trie_[node]) != label) return std::nullopt;
    const uint32_t unit = trie_[node];
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    const std::size_t begin = node < trie_.size() ? value_of(trie_[node]) : replacements_.size();
    if (begin >= replacements_.size()) return std::nullopt;
    const std::size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
    return std::string_view(replacements_).substr(begin, end - begin);
  }
  return std::nullopt;
}

DerivedText PrecompiledCharsmap::normalise(std::string_view text, std::size_t origin) const {
  constexpr std::size_t kShortCluster = 5;
  DerivedText result;
  result.text.reserve(text.size());
  result.origins.reserve(text.size());
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end = cluster_end(text, begin);
    if (end - begin <= kShortCluster) {
      if (const auto replacement = replacement_of_prefix(text.substr(begin, end - begin))) {
        result.append(*replacement, origin + begin);
        continue;
      }
    }
    for (std::size_t character = begin, next = begin; character < end; character = next) {
      next_character(text, next);
      const std::string_view part = text.substr(character, next - character);
      result.append(replacement_of_prefix(part).value_or(part), origin + character);
    }
  }
  return result;
}

}  // namespace pardiff
