#include "cli/machine.h"

#include <fstream>

namespace pardiff::cli {

std::string value_in(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    if (!text.starts_with(key)) continue;
    const auto start = text.find_first_not_of(" \t", text.find(':') + 1);
    return start == std::string::npos ? "" : text.substr(start);
  }
  return "unknown";
}

std::string processor_name() { return value_in("/proc/cpuinfo", "model name"); }

}  // namespace pardiff::cli
