#pragma once
#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace pardiff::cli {

/// What to do once the flags are parsed; returns the exit code.
using Action = std::function<int()>;

/// One row of the table in main.cpp.
struct Subcommand {
  std::string name;
  std::string summary;
  /// Declares the flags. They are checked while they are parsed: UsageError.
  Action (*declare)(CLI::App& app);
};

Action declare_generate(CLI::App& app);
Action declare_inspect(CLI::App& app);
Action declare_doctor(CLI::App& app);
Action declare_convert(CLI::App& app);
Action declare_init(CLI::App& app);

/// "pardiff 0.1.0"
std::string version_line();

}  // namespace pardiff::cli
