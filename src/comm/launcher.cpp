#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/core/log.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "comm/rendezvous.h"

extern char** environ;

namespace pardiff {
namespace {

volatile std::sig_atomic_t caught_signal = 0;
void remember_signal(int number) { caught_signal = number; }

// Catches what ends a program from outside while the ranks run.
class SignalWatch {
 public:
  SignalWatch() {
    struct sigaction action = {};
    action.sa_handler = remember_signal;
    for (size_t i = 0; i < kCount; ++i) {
      sigaction(kSignals[i], &action, &before_[i]);
      if (before_[i].sa_handler == SIG_IGN) sigaction(kSignals[i], &before_[i], nullptr);  // as nohup wants it
    }
  }
  ~SignalWatch() {
    for (size_t i = 0; i < kCount; ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  static constexpr size_t kCount = 3;
  struct sigaction before_[kCount];
};

std::vector<std::string> environment_of(int rank, int size, int port) {
  const std::map<std::string, std::string> own = {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(size)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(size)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"PARDIFF_PARENT_PID", std::to_string(getpid())},
  };
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!own.count(text.substr(0, text.find('=')))) all.push_back(text);
  }
  for (const auto& [name, value] : own) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

pid_t start_rank(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  const auto argv = pointers_to(arguments), envp = pointers_to(environment);
  const pid_t parent = getpid();
  const pid_t child = fork();
  check<CommError>(child >= 0, "cannot start a rank: ", std::strerror(errno), ".");
  if (child == 0) {  // only calls that are safe after a fork
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    execve("/proc/self/exe", argv.data(), envp.data());
    _exit(127);
  }
  return child;
}

class RankProcesses {
 public:
  void add(int rank, pid_t pid) { running_[pid] = rank; }
  ~RankProcesses() { end_all(); }
  bool empty() const { return running_.empty(); }

  // Waits a moment for one to end; returns its rank and status, or rank -1.
  std::pair<int, int> reap() {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return {-1, 0};
    }
    const auto found = running_.find(pid);
    if (found == running_.end()) return {-1, 0};
    const int rank = found->second;
    running_.erase(found);
    return {rank, status};
  }

  // Asks, waits, and insists.
  void end_all() {
    send(SIGTERM);
    send(SIGCONT);  // a stopped rank could not hear it
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    while (!running_.empty() && std::chrono::steady_clock::now() < deadline) reap();
    send(SIGKILL);
    while (!running_.empty()) reap();
  }

 private:
  void send(int signal) {
    for (const auto& [pid, rank] : running_) kill(pid, signal);
  }

  std::map<pid_t, int> running_;
};

int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 1; }

std::string how_it_ended(const comm::StoreServer& server, int rank, int status) {
  const auto seen = server.last_seen(rank);
  if (!WIFSIGNALED(status))
    return text_of("rank ", rank, " left with exit code ", WEXITSTATUS(status), "; it was ", seen, ".");
  const int signal = WTERMSIG(status);
  return text_of("rank ", rank, " was ended by signal ", signal, " (", strsignal(signal), "); it was ", seen, ".",
                 signal == SIGKILL ? " Perhaps memory ran out." : "");
}

}  // namespace

int launch_ranks(int size, const std::vector<std::string>& arguments) {
  const SignalWatch watch;
  comm::StoreServer server(size);
  RankProcesses ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.add(rank, start_rank(arguments, environment_of(rank, size, server.port())));
  }
  while (!ranks.empty()) {
    if (caught_signal) {
      ranks.end_all();
      return 128 + caught_signal;
    }
    const auto [rank, status] = ranks.reap();
    if (rank < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) continue;
    if (server.must_report()) {
      report_error(text_of(how_it_ended(server, rank, status), " The other ranks have been ended."));
    }
    const int code = server.reported_exit_code().value_or(exit_code_of(status));
    ranks.end_all();
    return code;
  }
  return 0;
}

}  // namespace pardiff
