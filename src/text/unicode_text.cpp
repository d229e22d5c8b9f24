#include "text/unicode_text.h"

#include <pardiff/core/check.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "text/unicode_tables.h"

namespace pardiff {
namespace {

// The offset of the first byte that starts no character, or npos.
std::size_t find_ill_formed(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    const std::size_t start = position;
    UChar32 character = 0;
    U8_NEXT(text.data(), position, text.size(), character);
    if (character < 0) return start;
  }
  return std::string_view::npos;
}

bool is_in_unicode_15(char32_t character) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(character), age);
  return age[0] >= 1 && (age[0] < 15 || (age[0] == 15 && age[1] == 0));
}

const icu::Normalizer2& nfc_of_unicode_9() {
  // FilteredNormalizer2 keeps references only, and both must outlive every caller.
  static const icu::Normalizer2& normalizer = *[] {
    UErrorCode status = U_ZERO_ERROR;
    auto* const set = new icu::UnicodeSet(icu::UnicodeString("[:age=9.0:]"), status);
    const icu::Normalizer2* const nfc = icu::Normalizer2::getNFCInstance(status);
    check<Error>(U_SUCCESS(status), "cannot load ICU's normalisation data: ", u_errorName(status),
                 ". Reinstall libicu and its data.");
    set->freeze();
    return new icu::FilteredNormalizer2(*nfc, *set);
  }();
  return normalizer;
}

}  // namespace

void require_utf8(std::string_view text, const char* name) {
  const std::size_t offset = find_ill_formed(text);
  if (offset == std::string_view::npos) return;
  char byte[8];
  std::snprintf(byte, sizeof byte, "0x%02x", static_cast<unsigned char>(text[offset]));
  fail<UsageError>(name, " is not UTF-8: byte ", byte, " at offset ", offset, " of ", text.size(),
                   " starts no valid character. Give it in UTF-8.");
}

bool is_utf8(std::string_view text) { return find_ill_formed(text) == std::string_view::npos; }

char32_t next_character(std::string_view text, std::size_t& position) {
  UChar32 character = 0;
  U8_NEXT_OR_FFFD(text.data(), position, text.size(), character);
  return static_cast<char32_t>(character);
}

void append_utf8(char32_t character, std::string& text) {
  char bytes[U8_MAX_LENGTH];
  int length = 0;
  U8_APPEND_UNSAFE(bytes, length, static_cast<UChar32>(character));
  text.append(bytes, static_cast<std::size_t>(length));
}

bool is_white_space(char32_t character) { return u_isUWhiteSpace(static_cast<UChar32>(character)); }

bool is_letter(char32_t character) {
  if (!is_in_unicode_15(character)) return find_range(kLaterLetters, character) != nullptr;
  return (U_GET_GC_MASK(static_cast<UChar32>(character)) & U_GC_L_MASK) != 0;
}

bool is_number(char32_t character) {
  if (!is_in_unicode_15(character)) return find_range(kLaterNumbers, character) != nullptr;
  return (U_GET_GC_MASK(static_cast<UChar32>(character)) & U_GC_N_MASK) != 0;
}

void append_lower_case(char32_t character, std::string& text) {
  constexpr char32_t kDottedI = 0x130, kDotAbove = 0x307;
  if (character == kDottedI) {  // the one character whose lower case is two
    append_utf8(U'i', text);
    append_utf8(kDotAbove, text);
  } else if (is_in_unicode_15(character)) {
    append_utf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(character))), text);
  } else {
    const CaseRange* const range = find_range(kLaterUpperCase, character);
    append_utf8(range == nullptr ? character : character + static_cast<char32_t>(range->to_lower), text);
  }
}

namespace {

// Decomposes and orders the marks. ICU would order them by insertion, which takes minutes for a megabyte of marks in
// the wrong order.
icu::UnicodeString in_canonical_order(const icu::UnicodeString& source, const icu::Normalizer2& normalizer) {
  std::vector<std::pair<uint8_t, UChar32>> characters;
  const auto add = [&](const icu::UnicodeString& text) {
    for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
      const UChar32 character = text.char32At(i);
      characters.emplace_back(normalizer.getCombiningClass(character), character);
    }
  };
  icu::UnicodeString decomposition;
  for (int32_t i = 0; i < source.length(); i = source.moveIndex32(i, 1)) {
    const UChar32 character = source.char32At(i);
    add(normalizer.getDecomposition(character, decomposition) ? decomposition : icu::UnicodeString(character));
  }
  const auto is_starter = [](const auto& character) { return character.first == 0; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    if (is_starter(*begin)) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, characters.end(), is_starter);
    std::stable_sort(begin, end, [](const auto& a, const auto& b) { return a.first < b.first; });
    begin = end;
  }
  icu::UnicodeString result;
  for (const auto& [combining_class, character] : characters) result.append(character);
  return result;
}

std::string normalised(std::string_view run, const icu::Normalizer2& normalizer) {
  constexpr int32_t kLongRun = 256;
  auto source = icu::UnicodeString::fromUTF8(icu::StringPiece(run.data(), static_cast<int32_t>(run.size())));
  if (source.length() > kLongRun) source = in_canonical_order(source, normalizer);
  UErrorCode status = U_ZERO_ERROR;
  std::string result;
  normalizer.normalize(source, status).toUTF8String(result);
  check<Error>(U_SUCCESS(status), "cannot normalise the prompt: ", u_errorName(status), ".");
  return result;
}

}  // namespace

DerivedText to_nfc(std::string_view text, std::size_t origin) {
  constexpr char32_t kFirstThatCanChange = 0x300;
  const icu::Normalizer2& normalizer = nfc_of_unicode_9();
  DerivedText result;
  result.text.reserve(text.size());
  result.origins.reserve(text.size());
  std::size_t start = 0;
  while (start < text.size()) {
    std::size_t end = start;
    const char32_t first = next_character(text, end);
    bool is_alone = true;
    for (std::size_t next = end; next < text.size(); end = next) {
      const char32_t character = next_character(text, next);
      if (character < kFirstThatCanChange || normalizer.hasBoundaryBefore(static_cast<UChar32>(character))) break;
      is_alone = false;
    }
    const std::string_view run = text.substr(start, end - start);
    if (is_alone && first < kFirstThatCanChange) {
      result.append(run, origin + start);
    } else {
      result.append(normalised(run, normalizer), origin + start);
    }
    start = end;
  }
  return result;
}

}  // namespace pardiff
