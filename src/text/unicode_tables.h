// What Unicode 15.1, 16 and 17 added to the properties that tokenizers depend on. ICU supplies Unicode 15.0; asking it
// for more would make ids depend on the version installed. Measured on the reference, character by character.
#pragma once
#include <algorithm>
#include <iterator>

namespace pardiff {

struct CharacterRange {
  char32_t first, last;
};

// Letters of Unicode 15.1 and 16.
inline constexpr CharacterRange kLaterLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D4A, 0x10D65},
    {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E},
    {0x11390, 0x113B5}, {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0},
    {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D},
};

// Numbers of Unicode 16.
inline constexpr CharacterRange kLaterNumbers[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x16130, 0x16139},
    {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA},
};

// Upper case letters of Unicode 16 and 17, and how far their lower case is away.
struct CaseRange {
  char32_t first, last;
  int to_lower;
};
inline constexpr CaseRange kLaterUpperCase[] = {
    {0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
    {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
    {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
    {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
    {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 0x1B},
};

// Characters of Unicode 16 and 17 that continue a grapheme cluster.
inline constexpr CharacterRange kLaterClusterExtenders[] = {
    {0x0897, 0x0897},   {0x1ACF, 0x1ADD},   {0x1AE0, 0x1AEB},   {0x10D69, 0x10D6D}, {0x10EFA, 0x10EFC},
    {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D0},
    {0x113D2, 0x113D2}, {0x113E1, 0x113E2}, {0x11B60, 0x11B67}, {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F},
    {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5},
};

// Pictographs by Unicode 15.0 that later versions gave to characters that are none.
inline constexpr CharacterRange kFormerPictographs[] = {
    {0x1F774, 0x1F77F}, {0x1F7D5, 0x1F7D9}, {0x1F8B0, 0x1F8BB},
    {0x1F8C0, 0x1F8C1}, {0x1F8D0, 0x1F8D8}, {0x1FA54, 0x1FA57},
};

// The range of a sorted table that holds `character`, or nullptr.
template <typename Range, std::size_t size>
const Range* find_range(const Range (&table)[size], char32_t character) {
  const Range* const range = std::lower_bound(std::begin(table), std::end(table), character,
                                              [](const Range& r, char32_t value) { return r.last < value; });
  return range != std::end(table) && range->first <= character ? range : nullptr;
}

}  // namespace pardiff
