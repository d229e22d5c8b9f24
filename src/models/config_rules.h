#pragma once
#include <pardiff/core/check.h>
#include <pardiff/io/config_file.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace pardiff {

// Above every model there is; a count beyond them is a damaged file, and would only show as an absurd allocation.
constexpr int64_t kMaxLayers = 1000;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

// The same rules hold for a configuration filled in by hand and for one read from a file; only the second can name one.
template <typename Config>
Config validated(Config config, const ConfigFile& file) {
  try {
    config.validate();
  } catch (const ConfigError& error) {
    fail<CheckpointError>(file.origin(), ": ", error.what());
  }
  return config;
}

inline void require_between(const std::string& key, int64_t value, int64_t max) {
  check<ConfigError>(value >= 1 && value <= max, key, " is ", value, ". Give a number from 1 to ", max, ".");
}

inline void require_one_of(const std::string& key, const std::string& value, const std::vector<std::string>& known) {
  check<ConfigError>(std::find(known.begin(), known.end(), value) != known.end(), key, " is \"", value,
                     "\", which is not supported. Use one of: ", joined(known), ".");
}

inline void require_divides(const std::string& key, int64_t value, const std::string& divisor_key, int64_t divisor) {
  check<ConfigError>(divisor > 0 && value % divisor == 0, key, " is ", value, ", which does not divide into ",
                     divisor_key, " ", divisor, ". Make one a multiple of the other.");
}

inline void require_positive(const std::string& key, double value) {
  check<ConfigError>(value > 0 && value <= std::numeric_limits<double>::max(), key, " is ", value,
                     ". Give a number above 0.");
}

}  // namespace pardiff
