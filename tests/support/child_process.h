#pragma once
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace pardiff::testing {

struct ChildResult {
  int exit_code = -1;  // -1: it was ended by a signal, or ran out of time
  int signal = 0;
  bool timed_out = false;
  std::string out, err;

  /// Lines of `err` that begin with "pardiff: error: ".
  std::vector<std::string> errors() const;
};

/// A program in a process group of its own, with all that it starts. What a launcher would set is taken out of its
/// environment, then `environment` ("NAME=VALUE") is added.
class ChildProcess {
 public:
  explicit ChildProcess(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});
  /// Ends the whole group.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  /// Processes that the child has started and that live.
  std::vector<pid_t> children() const;
  /// Waits until stderr contains `text`; false if that does not happen in time.
  bool says(const std::string& text, std::chrono::seconds limit = std::chrono::seconds(60)) const;
  /// To the child alone, or to its whole group as a terminal does it.
  void send(int signal) const;
  void send_to_group(int signal) const;
  ChildResult wait(std::chrono::seconds limit = std::chrono::seconds(120));
  /// True once no process of the group is left.
  bool group_is_gone(std::chrono::seconds limit = std::chrono::seconds(10)) const;

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  std::filesystem::path folder_;
};

ChildResult run_child(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

/// A port of the loopback interface that was free a moment ago.
int free_port();

}  // namespace pardiff::testing
