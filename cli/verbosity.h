#pragma once

namespace pardiff::cli {

class Flags;

/// --quiet, --verbose, --debug.
struct Verbosity {
  bool quiet = false, verbose = false, debug = false;

  void declare(Flags& flags);
  /// Throws: UsageError if more than one is given.
  void apply() const;
};

}  // namespace pardiff::cli
