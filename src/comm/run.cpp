#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/core/log.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>

#include "comm/backends/liveness.h"
#include "comm/rendezvous.h"

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

// An error of the engine carries its backtrace in its text. Our line is one line.
std::string message_of(const std::exception& error) {
  const auto* engine = dynamic_cast<const c10::Error*>(&error);
  std::string text = engine ? engine->what_without_backtrace() : error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string backtrace_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return own->backtrace();
  const auto* engine = dynamic_cast<const c10::Error*>(&error);
  return engine && engine->backtrace() ? engine->backtrace()->get() : std::string();
}

void print(const std::exception& error) {
  report_error(message_of(error));
  if (log_level() >= LogLevel::kDebug) std::cerr << backtrace_of(error) << std::flush;
}

// Prints the error unless another rank has, or is the cause.
void report(comm::Rendezvous* rendezvous, const std::exception& error) {
  const bool is_consequence = dynamic_cast<const comm::LostPeer*>(&error) != nullptr;
  if (!rendezvous) {
    print(error);
  } else if (rendezvous->liveness()->claim_report(is_consequence)) {
    print(error);
    rendezvous->liveness()->confirm_report(exit_code_of(error));
  }
}

// c10d tells of every lost connection with a backtrace of its own; our one message says what happened.
void quieten_c10d() {
  constexpr int kFatalOnly = 3;
  if (log_level() < LogLevel::kDebug) FLAGS_caffe2_log_level = kFatalOnly;
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
  quieten_c10d();
  LaunchEnv env;
  std::shared_ptr<comm::Rendezvous> rendezvous;
  std::unique_ptr<World> world;
  try {
    const auto found = LaunchEnv::from_environment();
    if (!found && ranks_to_start() > 1) return launch_ranks(ranks_to_start(), own_arguments());
    env = found.value_or(env);
    if (env.world_size > 1) {
      rendezvous = comm::meet_over_tcp(env, options);
    }
    world.reset(new World(env, options, rendezvous));
    work(*world);
    world->finish();
    return 0;
  } catch (const std::exception& error) {
    report(rendezvous.get(), error);
    if (env.world_size > 1) leave(exit_code_of(error));
    return exit_code_of(error);
  }
}

int report_failure(const std::exception& error) {
  quieten_c10d();
  LaunchEnv env;
  std::shared_ptr<comm::Rendezvous> rendezvous;
  try {
    env = LaunchEnv::from_environment().value_or(env);
    if (env.world_size > 1) rendezvous = comm::meet_over_tcp(env, {.timeout_s = 10});
  } catch (const std::exception&) {
    // No launcher, or one that cannot be reached: everybody speaks for himself.
  }
  report(rendezvous.get(), error);
  return exit_code_of(error);
}

}  // namespace pardiff
