#pragma once
#include <pardiff/core/error.h>

#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace pardiff {

/// Concatenates values as a stream prints them.
template <typename... Parts>
std::string text_of(const Parts&... parts) {
  std::ostringstream stream;
  stream << std::boolalpha;
  (stream << ... << parts);
  return stream.str();
}

/// "a, b, c"
template <typename Items>
std::string joined(const Items& items, const char* separator = ", ") {
  std::ostringstream stream;
  const char* before = "";
  for (const auto& item : items) {
    stream << before << item;
    before = separator;
  }
  return stream.str();
}

/// Throws `Kind` with the parts as its message.
template <typename Kind, typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Kind(text_of(parts...));
}

/// Throws `Kind` unless `condition` holds; the message is built only then.
template <typename Kind, typename... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) fail<Kind>(parts...);
}

}  // namespace pardiff
