#include "support/program.h"

#include "support/golden.h"

namespace pardiff::testing {

std::string program() { return PARDIFF_PROGRAM; }

std::vector<std::string> generate_command(const std::string& output, const std::vector<std::string>& flags) {
  std::vector<std::string> command = {program(),
                                      "generate",
                                      "--model",
                                      model_path("flux-shapes"),
                                      "--prompt",
                                      "a large yellow star on a purple background",
                                      "--height",
                                      "64",
                                      "--width",
                                      "64",
                                      "--steps",
                                      "2",
                                      "--max-sequence-length",
                                      "16",
                                      "--seed",
                                      "0",
                                      "--device",
                                      "cpu",
                                      "--dtype",
                                      "float32",
                                      "--output",
                                      output};
  command.insert(command.end(), flags.begin(), flags.end());
  return command;
}

ChildResult run_program(std::vector<std::string> arguments, const std::vector<std::string>& environment) {
  arguments.insert(arguments.begin(), program());
  return run_child(arguments, environment);
}

}  // namespace pardiff::testing
