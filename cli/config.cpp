#include "cli/config.h"

#include <pardiff/core/check.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "cli/flags.h"

namespace pardiff::cli {
namespace {

// Flags of which one replaces the others, so that one on the command line counts for all.
const std::vector<std::vector<std::string>> kEitherOr = {{"--prompt", "--prompt-file"},
                                                         {"--quiet", "--verbose", "--debug"}};

std::string flag_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key.starts_with("--") ? key : text_of("--", key);
}

// The shortest text that reads as the same number.
std::string text_of_number(double value) {
  std::array<char, 40> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::vector<std::string> texts_in(const ConfigFile& values, const std::string& key) {
  try {
    return values.strings(key, {});
  } catch (const CheckpointError&) {
    return {values.string(key, "")};  // one text without a list around it
  }
}

std::vector<std::string> values_of(const FlagSpec& flag, const ConfigFile& values, const std::string& key) {
  switch (flag.kind) {
    case FlagSpec::Kind::kToggle:
      return values.boolean(key, false) ? std::vector<std::string>{""} : std::vector<std::string>{};
    case FlagSpec::Kind::kInteger:
      return {std::to_string(values.integer(key, 0))};
    case FlagSpec::Kind::kReal:
      return {text_of_number(values.number(key, 0))};
    case FlagSpec::Kind::kTexts:
      return texts_in(values, key);
    default:
      return {values.string(key, "")};
  }
}

bool is_replaced(const std::string& flag, const std::set<std::string>& given_before) {
  for (const auto& set : kEitherOr) {
    if (std::find(set.begin(), set.end(), flag) == set.end()) continue;
    return std::any_of(set.begin(), set.end(), [&](const auto& other) { return given_before.contains(other); });
  }
  return given_before.contains(flag);
}

void check_names(const Flags& flags, const ConfigFile& values, const std::set<std::string>& passed_over) {
  std::vector<std::string> unknown;
  for (const auto& key : values.keys()) {
    const auto flag = flag_of(key);
    if (passed_over.contains(key) || (flags.find(flag) && flag != "--config")) continue;
    const auto like = nearest(flag, flags.names());
    unknown.push_back(like.empty() ? key : text_of(key, " (did you mean ", like.substr(2), "?)"));
  }
  check<UsageError>(unknown.empty(), values.origin(), " has what is no flag: ", joined(unknown),
                    ". Its names are those of the flags; see --help.");
}

}  // namespace

void give_values(Flags& flags, const ConfigFile& values, const std::set<std::string>& passed_over) {
  check_names(flags, values, passed_over);
  std::set<std::string> given_before;
  for (const auto& name : flags.names()) {
    if (flags.is_given(name)) given_before.insert(name);
  }
  for (const auto& key : values.keys()) {
    const auto flag = flag_of(key);
    if (passed_over.contains(key) || is_replaced(flag, given_before)) continue;
    const auto& spec = *flags.find(flag);
    check<UsageError>(!flags.is_given(flag), values.origin(), " gives ", flag, " twice. Give it once.");
    std::vector<std::string> texts;
    try {
      texts = values_of(spec, values, key);
    } catch (const CheckpointError& error) {
      fail<UsageError>(error.what());  // of another type; its text names file, key and value
    }
    try {
      flags.give(spec, texts);
    } catch (const UsageError& error) {
      fail<UsageError>(values.origin(), ": ", error.what());
    }
  }
}

}  // namespace pardiff::cli
