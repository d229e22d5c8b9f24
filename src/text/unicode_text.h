#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace pardiff {

/// Throws UsageError with the offset and value of the first byte of `text` that starts no UTF-8 character. The message
/// calls the text `name`.
void require_utf8(std::string_view text, const char* name = "the prompt");
bool is_utf8(std::string_view text);

/// The character at `position`, which moves behind it. Ill-formed bytes read as U+FFFD.
char32_t next_character(std::string_view text, std::size_t& position);
void append_utf8(char32_t character, std::string& text);

/// Text made from another text, with the offset there that each byte stems from.
struct DerivedText {
  std::string text;
  std::vector<std::size_t> origins;

  void append(std::string_view part, std::size_t origin) {
    text += part;
    origins.insert(origins.end(), part.size(), origin);
  }
};

/// Unicode's White_Space, at the same time `\s` of the reference's regular expressions.
bool is_white_space(char32_t character);
/// `\p{L}` and `\p{N}` as the reference's regular expressions know them: Unicode 16, whatever this machine's ICU knows.
bool is_letter(char32_t character);
bool is_number(char32_t character);
/// Appends the lower case of one character without regard to its neighbours (Unicode 17).
void append_lower_case(char32_t character, std::string& text);

/// NFC of Unicode 9, which the reference uses: characters added later neither compose nor reorder.
/// Origins point to the start of the shortest run of characters that normalises by itself, moved by `origin`.
DerivedText to_nfc(std::string_view text, std::size_t origin);

}  // namespace pardiff
