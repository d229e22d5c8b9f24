#pragma once
#include <string>

namespace pardiff {

enum class LogLevel { kQuiet, kNormal, kVerbose, kDebug };

/// What reaches stderr from here on: kQuiet only errors, kNormal warnings too, kVerbose progress notes too.
void set_log_level(LogLevel level);
LogLevel log_level();

/// Writes "pardiff: warning: <message>" to stderr. Ranks that would all say the same let rank 0 say it.
void warn(const std::string& message);
/// Writes "pardiff: <message>" to stderr when verbose.
void note(const std::string& message);
/// Writes "pardiff: error: <message>" to stderr.
void report_error(const std::string& message);

}  // namespace pardiff
