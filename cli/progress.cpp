#include "cli/progress.h"

#include <pardiff/core/check.h>
#include <pardiff/core/log.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <sstream>
#include <string_view>

namespace pardiff::cli {
namespace {

constexpr int64_t kWidestBar = 30, kNarrowestBar = 5;
constexpr int64_t kUsualColumns = 80;
constexpr int64_t kMostPlainLines = 20;

void write_to_stderr(const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const auto count = ::write(STDERR_FILENO, text.data() + written, text.size() - written);
    if (count <= 0) return;  // nobody listens
    written += static_cast<size_t>(count);
  }
}

std::string seconds_text(double seconds) {
  std::ostringstream text;
  text << std::fixed;
  if (seconds < 1) {
    text << std::setprecision(0) << seconds * 1000 << " ms";
  } else {
    text << std::setprecision(seconds < 10 ? 1 : 0) << seconds << " s";
  }
  return text.str();
}

int64_t terminal_columns() {
  winsize size = {};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsualColumns;
}

}  // namespace

void say(const std::string& line) {
  if (log_level() >= LogLevel::kNormal) write_to_stderr("pardiff: " + line + "\n");
}

Progress::Progress(bool shown)
    : shown_(shown && log_level() >= LogLevel::kNormal), on_terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (line_open_) write_to_stderr("\n");
}

void Progress::step_done(int64_t done, int64_t steps) {
  if (!shown_) return;
  std::string timing;
  const auto now = std::chrono::steady_clock::now();
  if (first_step_done_) {
    const double elapsed = std::chrono::duration<double>(now - *first_step_done_).count();
    const double per_step = elapsed / static_cast<double>(done - first_done_);
    timing = text_of(", ", seconds_text(per_step), " a step");
    if (done < steps) timing += text_of(", ", seconds_text(per_step * static_cast<double>(steps - done)), " left");
  } else {
    first_step_done_ = now;
    first_done_ = done;
  }
  if (on_terminal_) {
    draw_bar(done, steps, timing);
  } else if (done == 1 || done == steps ||
             done % std::max<int64_t>(1, (steps + kMostPlainLines - 1) / kMostPlainLines) == 0) {
    write_to_stderr(text_of("pardiff: step ", done, " of ", steps, timing, "\n"));
  }
}

void Progress::draw_bar(int64_t done, int64_t steps, const std::string& timing) {
  // The line must not wrap: going back to its start would not reach the rows above.
  const int64_t room = terminal_columns() - 1;
  auto line = text_of("step ", done, " of ", steps, timing);
  const int64_t width =
      std::min(kWidestBar, room - static_cast<int64_t>(line.size() + std::string_view("pardiff: [] ").size()));
  if (width >= kNarrowestBar) {
    const auto filled = static_cast<size_t>(width * done / std::max<int64_t>(1, steps));
    line = text_of("[", std::string(filled, '#'), std::string(static_cast<size_t>(width) - filled, '.'), "] ", line);
  }
  // Return to the line's start, and clear what a longer line left behind.
  write_to_stderr(text_of("\r\033[K", text_of("pardiff: ", line).substr(0, static_cast<size_t>(room))));
  line_open_ = true;
  if (done == steps) {
    write_to_stderr("\n");
    line_open_ = false;
  }
}

}  // namespace pardiff::cli
