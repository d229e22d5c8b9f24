#include "cli/flags.h"

#include <pardiff/core/check.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace pardiff::cli {
namespace {

constexpr int kMostArguments = 100;

// Numbers without trailing zeros: 0, 3.5, 1e+06.
std::string shown(double value) { return text_of(value); }

void check_choice(const std::string& flag, const std::string& value, const std::vector<std::string>& choices) {
  check<UsageError>(std::find(choices.begin(), choices.end(), value) != choices.end(), flag, " is '", value,
                    "'. Use one of: ", joined(choices), ".");
}

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

Flags& Flags::group(const std::string& title, const std::string& example) {
  groups_.push_back({title, example});
  return *this;
}

FlagSpec& Flags::add(FlagSpec spec) {
  if (groups_.empty()) group("Flags", "");
  groups_.back().flags.push_back(std::move(spec));
  return groups_.back().flags.back();
}

CLI::Option* Flags::single(FlagSpec spec) {
  const auto on_results = [this, flag = spec.name, take = spec.take](const CLI::results_t& results) {
    check<UsageError>(results.size() == 1, flag, " is given ", results.size(), " times. Give it once.");
    take(results.front());
    given_.insert(flag);
    return true;
  };
  const auto& added = add(std::move(spec));
  return app_.add_option(added.name, on_results, added.help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

Flags& Flags::text(const std::string& flag, std::string& target, const std::string& help) {
  single({flag, FlagSpec::Kind::kText, "TEXT", help, {}, [flag, &target](const std::string& value) {
            check<UsageError>(!value.empty(), flag, " is empty. Give a value, or leave the flag off.");
            target = value;
          }});
  return *this;
}

Flags& Flags::texts(const std::string& flag, std::vector<std::string>& target, const std::string& help) {
  add({flag, FlagSpec::Kind::kTexts, "TEXT", help, {}, [&target](const std::string& value) {
         target.push_back(value);
       }});
  const auto on_results = [this, flag, &target](const CLI::results_t& results) {
    target = results;
    given_.insert(flag);
    return true;
  };
  app_.add_option(flag, on_results, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return *this;
}

Flags& Flags::path(const std::string& flag, std::filesystem::path& target, const std::string& help) {
  single({flag, FlagSpec::Kind::kPath, "FILE", help, {}, [flag, &target](const std::string& value) {
            check<UsageError>(!value.empty(), flag, " is empty. Give a path.");
            target = value;
          }});
  return *this;
}

Flags& Flags::integer(const std::string& flag, int64_t& target, Range range, const std::string& help) {
  single({flag, FlagSpec::Kind::kInteger, "N", help, {}, [=, &target](const std::string& value) {
            target = parse_integer(flag, value, range);
          }});
  return *this;
}

Flags& Flags::integer(const std::string& flag, std::optional<int64_t>& target, Range range, const std::string& help) {
  single({flag, FlagSpec::Kind::kInteger, "N", help, {}, [=, &target](const std::string& value) {
            target = parse_integer(flag, value, range);
          }});
  return *this;
}

Flags& Flags::real(const std::string& flag, double& target, RealRange range, const std::string& help) {
  single({flag, FlagSpec::Kind::kReal, "X", help, {}, [=, &target](const std::string& value) {
            target = parse_real(flag, value, range);
          }});
  return *this;
}

Flags& Flags::choice(const std::string& flag, std::string& target, const std::vector<std::string>& choices,
                     const std::string& help) {
  single({flag, FlagSpec::Kind::kChoice, joined(choices, "|"), help, choices, [=, &target](const std::string& value) {
            check_choice(flag, value, choices);
            target = value;
          }});
  return *this;
}

Flags& Flags::toggle(const std::string& flag, bool& target, const std::string& help) {
  add({flag, FlagSpec::Kind::kToggle, "", help, {}, [&target](const std::string&) { target = true; }});
  app_.add_flag_callback(
      flag,
      [this, flag, &target] {
        target = true;
        given_.insert(flag);
      },
      help);
  return *this;
}

Flags& Flags::argument(const std::string& name, std::string& target, const std::string& help) {
  single({name,
          FlagSpec::Kind::kArgument,
          "",
          help,
          {},
          [name, &target](const std::string& value) {
            check<UsageError>(!value.empty(), name, " is empty. Give a value.");
            target = value;
          }})
      ->required();
  return *this;
}

Flags& Flags::argument(const std::string& name, std::string& target, const std::vector<std::string>& choices,
                       const std::string& help) {
  single({name, FlagSpec::Kind::kArgument, "", help, choices,
          [=, &target](const std::string& value) {
            check_choice(name, value, choices);
            target = value;
          }})
      ->required();
  return *this;
}

Flags& Flags::arguments(const std::string& name, std::vector<std::string>& target, const std::string& help) {
  add({name, FlagSpec::Kind::kArgument, "", help, {}, [&target](const std::string& value) {
         target.push_back(value);
       }});
  const auto on_results = [&target](const CLI::results_t& results) {
    target = results;
    return true;
  };
  app_.add_option(name, on_results, help)->expected(0, kMostArguments)->allow_extra_args();
  return *this;
}

const FlagSpec* Flags::find(const std::string& flag) const {
  for (const auto& group : groups_) {
    for (const auto& spec : group.flags) {
      if (spec.name == flag) return &spec;
    }
  }
  return nullptr;
}

std::vector<std::string> Flags::names() const {
  std::vector<std::string> names;
  for (const auto& group : groups_) {
    for (const auto& spec : group.flags) {
      if (spec.kind != FlagSpec::Kind::kArgument) names.push_back(spec.name);
    }
  }
  return names;
}

void Flags::give(const FlagSpec& flag, const std::vector<std::string>& values) {
  if (is_given(flag.name) || values.empty()) return;
  for (const auto& value : values) flag.take(value);
  given_.insert(flag.name);
}

namespace {

// How many characters must be put in, left out or changed to make one text the other.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(const std::string& name, const std::vector<std::string>& names) {
  std::string best;
  size_t least = name.size() / 2;  // further off it would be a guess
  for (const auto& other : names) {
    const auto steps = distance(name, other);
    if (steps > least) continue;
    least = steps > 0 ? steps - 1 : 0;
    best = other;
  }
  return best;
}

}  // namespace pardiff::cli
