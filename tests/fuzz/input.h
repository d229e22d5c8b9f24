#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/temporary_folder.h"

namespace pardiff::fuzz {

/// Stands between the parts of an input that is several texts.
inline constexpr char kSeparator = '\x1e';

inline std::string_view text_of_input(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// The parts of `input`, always `count` of them: what is missing is empty, and the last one holds all the rest.
std::vector<std::string> parts_of(std::string_view input, size_t count);

/// Runs `read` on whatever the input was. It may succeed or throw pardiff::Error, whose message must be one line of
/// bounded length; any other exception ends the program.
void expect_refusal_or_success(const std::function<void()>& read);

/// A folder of this process's own; removed when the process ends.
const testing::TemporaryFolder& scratch_folder();

}  // namespace pardiff::fuzz
