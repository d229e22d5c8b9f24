#include "cli/help.h"

#include <pardiff/core/check.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "cli/subcommand.h"

namespace pardiff::cli {
namespace {

constexpr size_t kHelpColumn = 30;  // where the texts start

std::string described(const FlagSpec& flag) {
  const auto left = text_of("  ", flag.name, flag.value.empty() ? "" : " ", flag.value);
  // A flag that is too long for its column has a line of its own.
  const auto gap = left.size() + 2 > kHelpColumn ? text_of("\n", std::string(kHelpColumn, ' '))
                                                 : std::string(kHelpColumn - left.size(), ' ');
  return text_of(left, gap, wrapped(flag.help, kHelpColumns - kHelpColumn, kHelpColumn), "\n");
}

// Broken before flags only.
std::string wrapped_command(std::string command) {
  constexpr char kSpace = '\1';
  for (size_t i = 0; i < command.size(); ++i) {
    if (command[i] == ' ' && command.compare(i, 3, " --") != 0) command[i] = kSpace;
  }
  auto text = wrapped(command, kHelpColumns - 10, 8, " \\\n");
  std::replace(text.begin(), text.end(), kSpace, ' ');
  return text;
}

std::string described(const FlagGroup& group) {
  std::string text = text_of(group.title, "\n");
  for (const auto& flag : group.flags) text += described(flag);
  if (!group.example.empty()) text += text_of("  Example:\n    ", wrapped_command(group.example), "\n");
  return text;
}

}  // namespace

std::string wrapped(const std::string& text, size_t columns, size_t indent, const std::string& line_end) {
  std::string result;
  size_t used = 0;
  std::string word;
  const auto flush = [&] {
    if (used > 0 && used + 1 + word.size() > columns) {
      result += line_end;
      result.append(indent, ' ');
      used = 0;
    } else if (used > 0) {
      result.push_back(' ');
      ++used;
    }
    result += word;
    used += word.size();
    word.clear();
  };
  for (const char c : text) {
    if (c == ' ') {
      flush();
    } else {
      word.push_back(c);
    }
  }
  flush();
  return result;
}

std::string DescribedCommand::usage() const {
  std::string text = text_of("pardiff ", name);
  for (const auto& group : groups) {
    for (const auto& flag : group.flags) {
      if (flag.kind == FlagSpec::Kind::kArgument) text += text_of(" ", flag.name);
    }
  }
  return text_of(text, " [flags]");
}

std::string help_of(const DescribedCommand& command) {
  std::string text = text_of(command.summary, "\nUsage: ", command.usage(), "\n");
  for (const auto& group : command.groups) text += text_of("\n", described(group));
  return text;
}

std::vector<DescribedCommand> described_commands() {
  std::vector<DescribedCommand> commands;
  for (const auto& row : subcommands()) {
    CLI::App app;
    Flags flags(app);
    row.declare(flags);
    commands.push_back({row.name, row.summary, flags.groups()});
    auto& groups = commands.back().groups;
    groups.back().flags.push_back({"--help", FlagSpec::Kind::kToggle, "", kHelpText});
  }
  return commands;
}

}  // namespace pardiff::cli
