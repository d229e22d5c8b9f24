#include <pardiff/core/log.h>
#include <unistd.h>

#include <atomic>

namespace pardiff {
namespace {

std::atomic<LogLevel> current_level{LogLevel::kNormal};

// One write call a line, so that lines of several rank processes do not mix. On a terminal it takes the place of the
// progress bar that another rank may have left there.
void write_line(const std::string& text) {
  const bool on_terminal = isatty(STDERR_FILENO) == 1;
  const std::string line = (on_terminal ? "\r\033[Kpardiff: " : "pardiff: ") + text + "\n";
  size_t written = 0;
  while (written < line.size()) {
    const auto count = ::write(STDERR_FILENO, line.data() + written, line.size() - written);
    if (count <= 0) return;  // nobody listens
    written += static_cast<size_t>(count);
  }
}

}  // namespace

void set_log_level(LogLevel level) { current_level = level; }
LogLevel log_level() { return current_level; }

void warn(const std::string& message) {
  if (log_level() >= LogLevel::kNormal) write_line("warning: " + message);
}

void note(const std::string& message) {
  if (log_level() >= LogLevel::kVerbose) write_line(message);
}

void report_error(const std::string& message) { write_line("error: " + message); }

}  // namespace pardiff
