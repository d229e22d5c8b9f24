#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/core/log.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

namespace pardiff {
namespace {

// A rank ends with its launcher, however that ends.
void follow_parent() {
  const char* parent = std::getenv("PARDIFF_PARENT_PID");
  if (!parent) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::to_string(getppid()) != parent) std::_Exit(1);
}

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

int ranks_to_start() {
  const char* text = std::getenv("PARDIFF_NPROC_PER_NODE");
  if (!text) return 1;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  check<UsageError>(end != text && *end == 0 && value >= 1 && value <= 4096, "PARDIFF_NPROC_PER_NODE is '", text,
                    "', not a number of ranks from 1 to 4096.");
  return static_cast<int>(value);
}

int exit_code_of(const std::exception& error) { return dynamic_cast<const UsageError*>(&error) ? 2 : 1; }

void report(World* world, const std::exception& error) {
  const bool is_consequence = dynamic_cast<const CommError*>(&error) != nullptr;
  if (!world || world->claim_failure(is_consequence)) report_error(error.what());
}

// Other ranks may wait for this one in an operation that its destructors would wait for in turn: leave without them.
[[noreturn]] void leave(int code) {
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace

int run(const std::function<void(World&)>& work, const WorldOptions& options) {
  follow_parent();
  std::unique_ptr<World> world;
  try {
    const auto env = LaunchEnv::from_environment();
    if (!env && ranks_to_start() > 1) return launch_ranks(ranks_to_start(), own_arguments());
    world = env ? std::make_unique<World>(*env, options) : std::make_unique<World>(options);
    work(*world);
    world->finish();
    return 0;
  } catch (const std::exception& error) {
    report(world.get(), error);
    if (world && world->size() > 1) leave(exit_code_of(error));
    return exit_code_of(error);
  }
}

}  // namespace pardiff
