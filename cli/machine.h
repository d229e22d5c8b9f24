#pragma once
#include <string>

namespace pardiff::cli {

/// The value of the first line "<key> : <value>" of a file below /proc; "unknown" if there is none.
std::string value_in(const char* path, const std::string& key);

/// As the processor calls itself.
std::string processor_name();

}  // namespace pardiff::cli
