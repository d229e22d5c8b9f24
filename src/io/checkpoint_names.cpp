#include "io/checkpoint_names.h"

#include <pardiff/core/check.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string_view>

#include "io/file_bytes.h"

namespace pardiff {
namespace {

constexpr std::string_view kEnding = ".safetensors";

// "-00001-of-00003"
bool is_shard_number(std::string_view text) {
  constexpr std::string_view kPattern = "-#####-of-#####";
  return std::ranges::equal(text, kPattern, [](char c, char pattern) {
    return pattern == '#' ? std::isdigit(static_cast<unsigned char>(c)) != 0 : c == pattern;
  });
}

}  // namespace

CheckpointNames::CheckpointNames(const std::string& stem, const std::string& variant)
    : base_(variant.empty() ? stem : stem + "." + variant), stem_(stem), variant_(variant) {
  for (const auto& part : {stem, variant}) {
    check<UsageError>(part.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos, in_quotes(part),
                      " cannot be part of a checkpoint's file names. Give a name without slashes, such as fp16.");
  }
  check<UsageError>(!stem.empty(), "the stem of a checkpoint's file names is empty.");
}

std::string CheckpointNames::single() const { return text_of(base_, kEnding); }

std::string CheckpointNames::index() const {
  return text_of(stem_, kEnding, ".index.", variant_.empty() ? "" : variant_ + ".", "json");
}

std::string CheckpointNames::shard(std::size_t number, std::size_t count) const {
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu", number, count);
  return text_of(base_, numbers, kEnding);
}

std::vector<std::string> CheckpointNames::shards_in(const std::filesystem::path& folder) const {
  auto names = safetensors_files_in(folder);
  std::erase_if(names, [this](const std::string& name) {
    const std::string_view middle = std::string_view(name).substr(0, name.size() - kEnding.size());
    return !middle.starts_with(base_) || !is_shard_number(middle.substr(base_.size()));
  });
  return names;
}

std::vector<std::string> safetensors_files_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const auto name = entry.path().filename().string();
    if (name.ends_with(kEnding)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace pardiff
