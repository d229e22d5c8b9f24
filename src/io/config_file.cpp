#include <pardiff/core/check.h>
#include <pardiff/io/config_file.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/file_bytes.h"
#include "io/json_text.h"

namespace pardiff {
namespace {

constexpr int64_t kLargestConfig = 16 << 20;

bool is_int64(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    return value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  }
  return value.is_number_integer();
}

}  // namespace

struct ConfigFile::State {
  std::string origin;
  nlohmann::json values;

  const nlohmann::json* find(const std::string& key) const {
    const auto entry = values.find(key);
    return entry == values.end() || entry->is_null() ? nullptr : &*entry;
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const {
    const auto* value = find(key);
    fail<CheckpointError>(origin, ": ", in_quotes(key), " is ", value != nullptr ? described(*value) : "absent", ", ",
                          expected, ".");
  }

  template <typename Value, typename Accepts>
  Value read(const std::string& key, const Value& default_value, Accepts accepts, const char* expected) const {
    const auto* value = find(key);
    if (value == nullptr) return default_value;
    if (!accepts(*value)) refuse(key, expected);
    return value->template get<Value>();
  }

  template <typename Value, typename Accepts>
  std::vector<Value> read_list(const std::string& key, const std::vector<Value>& default_value, Accepts accepts,
                               const char* expected) const {
    const auto is_list = [&](const nlohmann::json& value) {
      return value.is_array() && std::all_of(value.begin(), value.end(), accepts);
    };
    return read(key, default_value, is_list, expected);
  }
};

ConfigFile ConfigFile::open(const std::filesystem::path& path) {
  return parse(read_whole_file(path, kLargestConfig), path.string());
}

ConfigFile ConfigFile::parse(const std::string& text, const std::string& origin) {
  auto state = std::make_shared<State>();
  state->origin = origin;
  state->values = parse_json(text, origin);
  check<CheckpointError>(state->values.is_object(), "cannot read ", origin, ": it holds ", described(state->values),
                         ", expected an object of keys and values.");
  ConfigFile config;
  config.state_ = std::move(state);
  return config;
}

const std::string& ConfigFile::origin() const { return state_->origin; }

std::vector<std::string> ConfigFile::keys() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : state_->values.items()) {
    if (!value.is_null()) names.push_back(key);
  }
  return names;
}

bool ConfigFile::has(const std::string& key) const { return state_->find(key) != nullptr; }

int64_t ConfigFile::integer(const std::string& key, int64_t default_value) const {
  return state_->read(key, default_value, is_int64, "expected an integer");
}

int64_t ConfigFile::positive_integer(const std::string& key, int64_t default_value, int64_t max) const {
  const auto in_range = [max](const nlohmann::json& value) {
    return is_int64(value) && value.get<int64_t>() >= 1 && value.get<int64_t>() <= max;
  };
  return state_->read(key, default_value, in_range, text_of("expected an integer from 1 to ", max).c_str());
}

std::optional<int64_t> ConfigFile::optional_integer(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  return integer(key, 0);
}

std::vector<int64_t> ConfigFile::integers(const std::string& key, const std::vector<int64_t>& default_value) const {
  return state_->read_list(key, default_value, is_int64, "expected a list of integers");
}

double ConfigFile::number(const std::string& key, double default_value) const {
  const auto is_finite = [](const nlohmann::json& value) {
    return value.is_number() && std::isfinite(value.get<double>());
  };
  return state_->read(key, default_value, is_finite, "expected a number");
}

bool ConfigFile::boolean(const std::string& key, bool default_value) const {
  const auto is_boolean = [](const nlohmann::json& value) { return value.is_boolean(); };
  return state_->read(key, default_value, is_boolean, "expected true or false");
}

std::string ConfigFile::string(const std::string& key, const std::string& default_value) const {
  const auto is_string = [](const nlohmann::json& value) { return value.is_string(); };
  return state_->read(key, default_value, is_string, "expected a string");
}

std::vector<std::string> ConfigFile::strings(const std::string& key,
                                             const std::vector<std::string>& default_value) const {
  const auto is_string = [](const nlohmann::json& value) { return value.is_string(); };
  return state_->read_list(key, default_value, is_string, "expected a list of strings");
}

std::string ConfigFile::class_name() const {
  if (has("_class_name")) return string("_class_name", "");
  const auto architectures = strings("architectures", {});
  return architectures.empty() ? "" : architectures.front();
}

void ConfigFile::expect_class(const std::vector<std::string>& names) const {
  const auto name = class_name();
  check<CheckpointError>(name.empty() || std::find(names.begin(), names.end(), name) != names.end(), origin(),
                         " is of a ", in_quotes(name), ", and what is needed here is ", joined(names, " or "),
                         ". Take this part from a FLUX checkpoint.");
}

std::optional<std::pair<std::string, std::string>> ConfigFile::component(const std::string& key) const {
  const auto* value = state_->find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array() || value->size() != 2) refuse(key, "expected a list of library and class");
  const auto& library = value->front();
  const auto& name = value->back();
  if (library.is_null() && name.is_null()) return std::nullopt;
  if (!library.is_string() || !name.is_string()) refuse(key, "expected a list of library and class");
  return std::pair(library.get<std::string>(), name.get<std::string>());
}

void ConfigFile::refuse(const std::string& key, const std::string& expected) const { state_->refuse(key, expected); }

}  // namespace pardiff
