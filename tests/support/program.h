#pragma once
#include <string>
#include <vector>

#include "support/child_process.h"

namespace pardiff::testing {

/// The program's path.
std::string program();

/// `pardiff generate` with flux-shapes, small and short: 64x64, 2 steps, 16 text tokens, seed 0, one picture in
/// `output`. On the CPU in float32, whatever this processor takes by itself. `flags` come last.
std::vector<std::string> generate_command(const std::string& output, const std::vector<std::string>& flags = {});

/// The program with these arguments.
ChildResult run_program(std::vector<std::string> arguments, const std::vector<std::string>& environment = {});

}  // namespace pardiff::testing
