#include "fuzz/input.h"

#include <pardiff/core/error.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace pardiff::fuzz {
namespace {

constexpr size_t kLongestMessage = 8192;

}  // namespace

std::vector<std::string> parts_of(std::string_view input, size_t count) {
  std::vector<std::string> parts;
  while (parts.size() + 1 < count) {
    const auto end = std::min(input.find(kSeparator), input.size());
    parts.emplace_back(input.substr(0, end));
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  parts.emplace_back(input);
  return parts;
}

void expect_refusal_or_success(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (!message.empty() && message.size() <= kLongestMessage && message.find('\0') == std::string::npos) return;
    std::fprintf(stderr, "a message of %zu bytes: %.200s\n", message.size(), message.c_str());
    std::abort();
  }
}

const testing::TemporaryFolder& scratch_folder() {
  static const testing::TemporaryFolder folder;
  return folder;
}

}  // namespace pardiff::fuzz
