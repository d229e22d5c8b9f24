#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/core/log.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <iostream>
#include <vector>

#include "cli/subcommand.h"

namespace pardiff::cli {

std::string version_line() { return "pardiff " PARDIFF_VERSION; }

namespace {

const std::vector<Subcommand>& subcommands() {
  static const std::vector<Subcommand> rows = {
      {"generate", "Make pictures from text, on one rank or several", declare_generate},
      {"inspect", "Show what a checkpoint holds, and what is missing or stray", declare_inspect},
      {"doctor", "Show versions, devices, attention backends and transports, and why others are missing",
       declare_doctor},
      {"convert", "Copy a checkpoint with another dtype or shard size", declare_convert},
      {"init", "Write a checkpoint of any size with random weights", declare_init},
  };
  return rows;
}

std::vector<std::string> names_of_subcommands() {
  std::vector<std::string> names;
  for (const auto& row : subcommands()) names.push_back(row.name);
  return names;
}

// CLI11 would report all that is left over in a sentence of its own.
void refuse_leftovers(const CLI::App& app, const std::string& command) {
  const auto rest = app.remaining(true);
  if (rest.empty()) return;
  fail<UsageError>("unknown argument '", rest.front(), "'. See ", command, " --help.");
}

int run_program(int argc, char** argv) {
  CLI::App app("Diffusion transformers on several ranks", "pardiff");
  app.set_version_flag("--version", version_line());
  app.allow_extras();
  std::vector<std::pair<CLI::App*, Action>> actions;
  for (const auto& row : subcommands()) {
    auto* command = app.add_subcommand(row.name, row.summary);
    command->allow_extras();
    actions.emplace_back(command, row.declare(*command));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {
    return app.exit(wanted);  // --help, --version
  } catch (const CLI::ParseError& error) {
    fail<UsageError>(error.what(), ". See pardiff ", argc > 1 ? argv[1] : "", " --help.");
  }
  for (const auto& [command, action] : actions) {
    if (!command->parsed()) continue;
    refuse_leftovers(*command, "pardiff " + command->get_name());
    return action();
  }
  refuse_leftovers(app, "pardiff");
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
