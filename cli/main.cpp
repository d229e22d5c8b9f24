#include <pardiff/comm/launch_env.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/core/log.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <iostream>
#include <memory>
#include <vector>

#include "cli/help.h"
#include "cli/subcommand.h"

namespace pardiff::cli {

std::string version_line() { return "pardiff " PARDIFF_VERSION; }

const std::vector<Subcommand>& subcommands() {
  static const std::vector<Subcommand> rows = {
      {"generate", "Make pictures from text, on one rank or several", declare_generate},
      {"plan", "Predict how fast every layout of some ranks is, and what memory it takes", declare_plan},
      {"bench", "Measure attention, operations among ranks and whole passes, and compare two runs", declare_bench},
      {"inspect", "Show what a checkpoint holds, and what is missing or stray", declare_inspect},
      {"doctor", "Show versions, devices, attention backends and transports, and why others are missing",
       declare_doctor},
      {"convert", "Copy a checkpoint with another dtype or shard size", declare_convert},
      {"init", "Write a checkpoint of any size with random weights", declare_init},
      {"completion", "Print what makes a shell complete pardiff's commands and flags", declare_completion},
      {"man", "Print the manual page", declare_man},
  };
  return rows;
}

namespace {

std::vector<std::string> names_of_subcommands() {
  std::vector<std::string> names;
  for (const auto& row : subcommands()) names.push_back(row.name);
  return names;
}

std::string program_help() {
  std::string text = "Diffusion transformers on several ranks\nUsage: pardiff COMMAND [flags]\n\nCommands\n";
  for (const auto& row : subcommands()) {
    const auto left = text_of("  ", row.name, std::string(14 - row.name.size(), ' '));
    text += text_of(left, wrapped(row.summary, kHelpColumns - left.size(), left.size()), "\n");
  }
  return text_of(text, "\nFlags\n  --help        Show this; pardiff COMMAND --help shows a command's flags\n",
                 "  --version     Show the version\n");
}

// CLI11 would report all that is left over in a sentence of its own.
void refuse_leftovers(const CLI::App& app, const std::string& command, const std::vector<std::string>& names) {
  const auto rest = app.remaining(true);
  if (rest.empty()) return;
  const auto like = nearest(rest.front(), names);
  fail<UsageError>("unknown argument '", rest.front(), "'. ", like.empty() ? "" : text_of("Did you mean ", like, "? "),
                   "See ", command, " --help.");
}

// What several ranks would all print, rank 0 prints.
void leave_printing_to_rank_0() {
  try {
    const auto env = LaunchEnv::from_environment();
    if (env && env->rank > 0) std::cout.rdbuf(nullptr);
  } catch (const UsageError&) {
    // Whoever needs the environment says what is wrong with it.
  }
}

class FixedHelp : public CLI::FormatterBase {
 public:
  explicit FixedHelp(std::string text) : text_(std::move(text)) {}
  std::string make_help(const CLI::App*, std::string, CLI::AppFormatMode) const override { return text_; }

 private:
  std::string text_;
};

struct Command {
  CLI::App* parser;
  std::unique_ptr<Flags> flags;
  Action action;
};

int run_program(int argc, char** argv) {
  leave_printing_to_rank_0();
  CLI::App app("Diffusion transformers on several ranks", "pardiff");
  app.set_version_flag("--version", version_line());
  app.formatter(std::make_shared<FixedHelp>(program_help()));
  app.allow_extras();
  std::vector<Command> commands;
  const auto descriptions = described_commands();
  for (size_t i = 0; i < descriptions.size(); ++i) {
    auto* parser = app.add_subcommand(descriptions[i].name, descriptions[i].summary);
    parser->formatter(std::make_shared<FixedHelp>(help_of(descriptions[i])));
    parser->allow_extras();
    auto flags = std::make_unique<Flags>(*parser);
    auto action = subcommands()[i].declare(*flags);
    commands.push_back({parser, std::move(flags), std::move(action)});
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {
    return app.exit(wanted);  // --help, --version
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();
    fail<UsageError>(text.substr(0, text.find(':')), " needs a value. See pardiff ", argc > 1 ? argv[1] : "",
                     " --help.");
  } catch (const CLI::ParseError& error) {
    fail<UsageError>(error.what(), ". See pardiff ", argc > 1 ? argv[1] : "", " --help.");
  }
  for (const auto& command : commands) {
    if (!command.parser->parsed()) continue;
    refuse_leftovers(*command.parser, text_of("pardiff ", command.parser->get_name()), command.flags->names());
    return command.action();
  }
  refuse_leftovers(app, "pardiff", names_of_subcommands());
  fail<UsageError>("no subcommand is given. Use one of: ", joined(names_of_subcommands()), ". See pardiff --help.");
}

}  // namespace
}  // namespace pardiff::cli

int main(int argc, char** argv) {
  try {
    return pardiff::cli::run_program(argc, argv);
  } catch (const std::exception& error) {
    return pardiff::report_failure(error);
  }
}
