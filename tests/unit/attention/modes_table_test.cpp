// The README's table of modes says what the registry says.
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

TEST(ModesTable, OfTheReadmeIsTheRegistry) {
  std::ifstream file(testing::model_path("../README.md"));
  std::vector<std::string> rows;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("<!-- modes:", 0) == 0) is_inside = !is_inside;
    if (is_inside && line.rfind("| `", 0) == 0) rows.push_back(line);
  }
  ASSERT_EQ(rows.size(), attention_modes().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& mode = attention_modes()[i];
    EXPECT_EQ(rows[i], text_of("| `", mode.name, "` | ", flags_of(mode), " | ", mode.requirement, " | ",
                               mode.when_to_use, " |"));
  }
}

}  // namespace
}  // namespace pardiff
