// The input is the arguments of `pardiff generate`, one on each line.
#include <pardiff/core/check.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <sstream>

#include "cli/flags.h"
#include "cli/generate_flags.h"
#include "fuzz/input.h"

namespace {

using namespace pardiff;

std::vector<std::string> lines_of(std::string_view input) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(input)};
  for (std::string line; std::getline(stream, line);) lines.push_back(line.substr(0, line.find('\0')));
  return lines;
}

// Everything that is decided before a file is read or a rank is started.
void parse(std::vector<std::string> arguments) {
  CLI::App app;
  app.allow_extras();
  cli::GenerateFlags generate;
  cli::Flags flags(app);
  generate.declare(flags);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes a vector
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::Error& error) {
    fail<UsageError>(error.what());
  }
  generate.validate();
  LaunchEnv launched;
  launched.world_size = launched.local_world_size = 4;
  (void)cli::choose_layout(generate.ranks, launched);
  (void)cli::choose_layout(generate.ranks, std::nullopt);
  (void)generate.pipeline_inputs();
  (void)generate.picture_paths();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::expect_refusal_or_success([&] { parse(lines_of(fuzz::text_of_input(data, size))); });
  return 0;
}
