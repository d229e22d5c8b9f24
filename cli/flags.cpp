#include "cli/flags.h"

#include <pardiff/core/check.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace pardiff::cli {
namespace {

// Numbers without trailing zeros: 0, 3.5, 1e+06.
std::string shown(double value) { return text_of(value); }

}  // namespace

int64_t parse_integer(const std::string& flag, const std::string& text, Range range) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  const bool is_number = stopped == end && !text.empty() && error != std::errc::invalid_argument;
  check<UsageError>(is_number && error == std::errc() && value >= range.least && value <= range.most, flag, " is '",
                    text, "'. Give a whole number from ", range.least, " to ", range.most, ".");
  return value;
}

double parse_real(const std::string& flag, const std::string& text, RealRange range) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  const bool is_number = stopped == end && error == std::errc() && std::isfinite(value);
  check<UsageError>(is_number && value >= range.least && value <= range.most, flag, " is '", text,
                    "'. Give a number from ", shown(range.least), " to ", shown(range.most), ".");
  return value;
}

int64_t parse_bytes(const std::string& flag, const std::string& text) {
  static const std::map<std::string, int64_t> units = {
      {"", 1},
      {"B", 1},
      {"KB", 1'000},
      {"MB", 1'000'000},
      {"GB", 1'000'000'000},
      {"TB", 1'000'000'000'000},
      {"KiB", 1 << 10},
      {"MiB", 1 << 20},
      {"GiB", 1 << 30},
  };
  const auto digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto unit = units.find(text.substr(digits));
  int64_t count = 0;
  const auto error = std::from_chars(text.data(), text.data() + digits, count).ec;
  check<UsageError>(digits > 0 && error == std::errc() && unit != units.end() && count > 0 &&
                        count <= (int64_t{1} << 60) / unit->second,
                    flag, " is '", text, "'. Give a size such as 500MB, 10GB or 2GiB.");
  return count * unit->second;
}

CLI::Option* Flags::single(const std::string& flag, const std::string& help,
                           const std::function<void(const std::string&)>& take) {
  const auto on_results = [flag, take](const CLI::results_t& results) {
    check<UsageError>(results.size() == 1, flag, " is given ", results.size(), " times. Give it once.");
    take(results.front());
    return true;
  };
  return app_.add_option(flag, on_results, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

Flags& Flags::text(const std::string& flag, std::string& target, const std::string& help) {
  single(flag, help, [flag, &target](const std::string& value) {
    check<UsageError>(!value.empty(), flag, " is empty. Give a value, or leave the flag off.");
    target = value;
  })->type_name("TEXT");
  return *this;
}

Flags& Flags::texts(const std::string& flag, std::vector<std::string>& target, const std::string& help) {
  const auto on_results = [&target](const CLI::results_t& results) {
    target = results;
    return true;
  };
  app_.add_option(flag, on_results, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->type_name("TEXT");
  return *this;
}

Flags& Flags::path(const std::string& flag, std::filesystem::path& target, const std::string& help) {
  single(flag, help, [flag, &target](const std::string& value) {
    check<UsageError>(!value.empty(), flag, " is empty. Give a path.");
    target = value;
  })->type_name("FILE");
  return *this;
}

Flags& Flags::integer(const std::string& flag, int64_t& target, Range range, const std::string& help) {
  single(flag, help, [=, &target](const std::string& value) {
    target = parse_integer(flag, value, range);
  })->type_name("N");
  return *this;
}

Flags& Flags::integer(const std::string& flag, std::optional<int64_t>& target, Range range, const std::string& help) {
  single(flag, help, [=, &target](const std::string& value) {
    target = parse_integer(flag, value, range);
  })->type_name("N");
  return *this;
}

Flags& Flags::real(const std::string& flag, double& target, RealRange range, const std::string& help) {
  single(flag, help, [=, &target](const std::string& value) {
    target = parse_real(flag, value, range);
  })->type_name("X");
  return *this;
}

Flags& Flags::choice(const std::string& flag, std::string& target, const std::vector<std::string>& choices,
                     const std::string& help) {
  single(flag, help, [=, &target](const std::string& value) {
    check<UsageError>(std::find(choices.begin(), choices.end(), value) != choices.end(), flag, " is '", value,
                      "'. Use one of: ", joined(choices), ".");
    target = value;
  })->type_name(joined(choices, "|"));
  return *this;
}

Flags& Flags::toggle(const std::string& flag, bool& target, const std::string& help) {
  app_.add_flag_callback(
      flag, [&target] { target = true; }, help);
  return *this;
}

Flags& Flags::argument(const std::string& name, std::string& target, const std::string& help) {
  single(name, help,
         [name, &target](const std::string& value) {
           check<UsageError>(!value.empty(), name, " is empty. Give a value.");
           target = value;
         })
      ->required()
      ->type_name("");
  return *this;
}

}  // namespace pardiff::cli
