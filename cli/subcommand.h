#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/flags.h"

namespace pardiff::cli {

/// What to do once the flags are parsed; returns the exit code.
using Action = std::function<int()>;

/// One row of the table in main.cpp.
struct Subcommand {
  std::string name;
  std::string summary;
  /// Declares the flags, which outlive the action. They are checked while they are parsed: UsageError.
  Action (*declare)(Flags& flags);
};

/// The table: all that help, completion and manual know.
const std::vector<Subcommand>& subcommands();

Action declare_generate(Flags& flags);
Action declare_plan(Flags& flags);
Action declare_bench(Flags& flags);
Action declare_inspect(Flags& flags);
Action declare_doctor(Flags& flags);
Action declare_convert(Flags& flags);
Action declare_init(Flags& flags);
Action declare_completion(Flags& flags);
Action declare_man(Flags& flags);

/// "pardiff 0.1.0"
std::string version_line();

}  // namespace pardiff::cli
