// The tables of modes in README and docs say what the registry says.
#include <gtest/gtest.h>
#include <pardiff/attention/mode.h>
#include <pardiff/core/check.h>

#include <fstream>

#include "support/golden.h"

namespace pardiff {
namespace {

std::string flags_of(const AttentionMode& mode) {
  std::vector<std::string> flags;
  if (mode.ring) flags.emplace_back("--ring-degree R");
  if (mode.ulysses) flags.emplace_back("--ulysses-degree U");
  if (mode.ring_anything) flags.emplace_back("--ring-anything");
  if (mode.ulysses_anything) flags.emplace_back("--ulysses-anything");
  return flags.empty() ? std::string() : text_of("`", joined(flags, " "), "`");
}

// The rows of the table of modes in a file of the repository.
std::vector<std::string> rows_of(const std::string& name) {
  std::ifstream file(testing::model_path("../" + name));
  std::vector<std::string> rows;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("<!-- modes:", 0) == 0) is_inside = !is_inside;
    if (is_inside && line.rfind("| `", 0) == 0) rows.push_back(line);
  }
  return rows;
}

TEST(ModesTable, OfTheReadmeIsTheRegistry) {
  const auto rows = rows_of("README.md");
  ASSERT_EQ(rows.size(), attention_modes().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& mode = attention_modes()[i];
    EXPECT_EQ(rows[i], text_of("| `", mode.name, "` | ", flags_of(mode), " | ", mode.requirement, " | ",
                               mode.when_to_use, " |"));
  }
}

// What the head exchange and the block loop of a mode contribute.
std::string listed(const AttentionMode& mode, const std::string& of_ulysses, const std::string& of_ring) {
  std::vector<std::string> items;
  if (mode.ulysses) items.push_back(of_ulysses);
  if (mode.ring) items.push_back(of_ring);
  if (items.empty()) items.emplace_back("none");
  return joined(items, ", ");
}

TEST(ModesTable, OfTheAlgorithmsIsTheRegistry) {
  const auto rows = rows_of("docs/algorithms.md");
  ASSERT_EQ(rows.size(), attention_modes().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& mode = attention_modes()[i];
    std::string steps = mode.ulysses ? "1, 2" : "2";
    if (mode.ring) steps += ", 3";
    if (mode.ulysses) steps += ", 4";
    EXPECT_EQ(rows[i], text_of("| `", mode.name, "` | ", steps, " | ", listed(mode, "all_to_all 2", "send R-1"), " | ",
                               listed(mode, "all_to_all 2", "send R-1 and R"), " |"));
  }
}

}  // namespace
}  // namespace pardiff
