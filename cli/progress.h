#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace pardiff::cli {

/// Writes "pardiff: <line>" to stderr unless --quiet.
void say(const std::string& line);

/// Shows the steps of a denoising loop on stderr: a bar on a terminal, else some plain lines. Silent under --quiet.
class Progress {
 public:
  /// `shown`: false on all ranks but one.
  explicit Progress(bool shown);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// To be called at the end of every step, counted from 1.
  void step_done(int64_t done, int64_t steps);

 private:
  void draw_bar(int64_t done, int64_t steps, const std::string& timing);

  bool shown_, on_terminal_;
  bool line_open_ = false;
  std::optional<std::chrono::steady_clock::time_point> first_step_done_{};
  int64_t first_done_ = 0;
};

}  // namespace pardiff::cli
