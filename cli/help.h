#pragma once
#include <string>
#include <vector>

#include "cli/flags.h"

namespace pardiff::cli {

/// Columns that a line of help has at most.
inline constexpr size_t kHelpColumns = 100;

/// A subcommand with its flags declared, for whoever describes them.
struct DescribedCommand {
  std::string name, summary;
  std::vector<FlagGroup> groups;

  /// "pardiff convert DIR OUT [flags]"
  std::string usage() const;
};

/// All of them, in the order of the table.
std::vector<DescribedCommand> described_commands();

/// Flags of every subcommand.
inline constexpr const char* kHelpText = "Show this";

/// What `pardiff COMMAND --help` prints: a block for each group of flags that fits on a screen, with an example.
std::string help_of(const DescribedCommand& command);

/// `text` in lines of at most `columns`, those after the first indented by `indent`, broken at spaces.
std::string wrapped(const std::string& text, size_t columns, size_t indent, const std::string& line_end = "\n");

}  // namespace pardiff::cli
