#include "text/grapheme_cluster.h"

#include <unicode/uchar.h>

#include "text/unicode_tables.h"
#include "text/unicode_text.h"

namespace pardiff {
namespace {

UGraphemeClusterBreak break_of(char32_t character) {
  if (find_range(kLaterClusterExtenders, character) != nullptr) return U_GCB_EXTEND;
  constexpr char32_t kLaterPrepend = 0x113D1, kFormerPrepend = 0x11A3A;
  if (character == kLaterPrepend) return U_GCB_PREPEND;
  if (character == kFormerPrepend) return U_GCB_OTHER;
  return static_cast<UGraphemeClusterBreak>(
      u_getIntPropertyValue(static_cast<UChar32>(character), UCHAR_GRAPHEME_CLUSTER_BREAK));
}

// Unicode 17 keeps the property to emoji and to unassigned places that may become emoji.
bool is_pictograph(char32_t character) {
  const auto c = static_cast<UChar32>(character);
  return u_hasBinaryProperty(c, UCHAR_EXTENDED_PICTOGRAPHIC) &&
         (u_hasBinaryProperty(c, UCHAR_EMOJI) || u_charType(c) == U_UNASSIGNED) &&
         find_range(kFormerPictographs, character) == nullptr;
}

bool is_control(UGraphemeClusterBreak kind) { return kind == U_GCB_CONTROL || kind == U_GCB_CR || kind == U_GCB_LF; }

bool joins_as_hangul(UGraphemeClusterBreak before, UGraphemeClusterBreak after) {
  switch (before) {
    case U_GCB_L:
      return after == U_GCB_L || after == U_GCB_V || after == U_GCB_LV || after == U_GCB_LVT;
    case U_GCB_LV:
    case U_GCB_V:
      return after == U_GCB_V || after == U_GCB_T;
    case U_GCB_LVT:
    case U_GCB_T:
      return after == U_GCB_T;
    default:
      return false;
  }
}

// What the rules need to know about the characters of a cluster so far.
class Cluster {
 public:
  explicit Cluster(char32_t first) { take(first, break_of(first)); }

  // Takes `character` if it belongs to the cluster.
  bool extend_by(char32_t character) {
    const UGraphemeClusterBreak kind = break_of(character);
    if (!continues_with(character, kind)) return false;
    take(character, kind);
    return true;
  }

 private:
  bool continues_with(char32_t character, UGraphemeClusterBreak kind) const {
    if (last_ == U_GCB_CR && kind == U_GCB_LF) return true;
    if (is_control(last_) || is_control(kind)) return false;
    if (kind == U_GCB_EXTEND || kind == U_GCB_ZWJ || kind == U_GCB_SPACING_MARK || last_ == U_GCB_PREPEND) return true;
    if (joins_as_hangul(last_, kind)) return true;
    if (pictograph_ == Pictograph::kJoiner && is_pictograph(character)) return true;
    return last_ == U_GCB_REGIONAL_INDICATOR && kind == U_GCB_REGIONAL_INDICATOR && regional_indicators_ % 2 == 1;
  }

  void take(char32_t character, UGraphemeClusterBreak kind) {
    if (is_pictograph(character)) {
      pictograph_ = Pictograph::kBase;
    } else if (pictograph_ == Pictograph::kBase && kind == U_GCB_ZWJ) {
      pictograph_ = Pictograph::kJoiner;
    } else if (pictograph_ != Pictograph::kBase || kind != U_GCB_EXTEND) {
      pictograph_ = Pictograph::kNone;
    }
    regional_indicators_ = kind == U_GCB_REGIONAL_INDICATOR ? regional_indicators_ + 1 : 0;
    last_ = kind;
  }

  enum class Pictograph { kNone, kBase, kJoiner };
  UGraphemeClusterBreak last_ = U_GCB_OTHER;
  Pictograph pictograph_ = Pictograph::kNone;
  std::size_t regional_indicators_ = 0;
};

bool is_plain_ascii(std::string_view text, std::size_t position) {
  return static_cast<unsigned char>(text[position]) < 0x80 && text[position] != '\r';
}

}  // namespace

std::size_t cluster_end(std::string_view text, std::size_t begin) {
  if (is_plain_ascii(text, begin) && (begin + 1 == text.size() || is_plain_ascii(text, begin + 1))) return begin + 1;
  std::size_t end = begin;
  Cluster cluster(next_character(text, end));
  for (std::size_t next = end; next < text.size(); end = next) {
    if (!cluster.extend_by(next_character(text, next))) break;
  }
  return end;
}

}  // namespace pardiff
