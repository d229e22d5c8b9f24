#include <pardiff/core/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

namespace pardiff {
namespace {

std::atomic<LogLevel> current_level{LogLevel::kNormal};

// One write call a line, so that lines of several rank processes do not mix.
spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("pardiff", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern("%v");
    made.flush_on(spdlog::level::trace);
    return made;
  }();
  return instance;
}

}  // namespace

void set_log_level(LogLevel level) { current_level = level; }
LogLevel log_level() { return current_level; }

void warn(const std::string& message) {
  if (log_level() >= LogLevel::kNormal) logger().info("pardiff: warning: {}", message);
}

void note(const std::string& message) {
  if (log_level() >= LogLevel::kVerbose) logger().info("pardiff: {}", message);
}

void report_error(const std::string& message) { logger().info("pardiff: error: {}", message); }

}  // namespace pardiff
