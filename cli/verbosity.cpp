#include "cli/verbosity.h"

#include <pardiff/core/check.h>
#include <pardiff/core/log.h>

#include "cli/flags.h"

namespace pardiff::cli {

void Verbosity::declare(Flags& flags) {
  flags.toggle("--quiet", quiet, "Say nothing but errors")
      .toggle("--verbose", verbose, "Say what is being done")
      .toggle("--debug", debug, "Say everything, with a backtrace for errors");
}

void Verbosity::apply() const {
  check<UsageError>(quiet + verbose + debug <= 1,
                    "more than one of --quiet, --verbose and --debug is given. Choose one.");
  if (quiet) set_log_level(LogLevel::kQuiet);
  if (verbose) set_log_level(LogLevel::kVerbose);
  if (debug) set_log_level(LogLevel::kDebug);
}

}  // namespace pardiff::cli
