#include "support/child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace pardiff::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string content(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

bool is_launchers(const std::string& entry) {
  for (const char* prefix :
       {"RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMIX_", "SLURM_", "PARDIFF_"}) {
    if (entry.starts_with(prefix)) return true;
  }
  return false;
}

std::vector<std::string> environment_with(const std::vector<std::string>& added) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) {
    if (!is_launchers(*entry)) all.emplace_back(*entry);
  }
  all.emplace_back("OMP_NUM_THREADS=1");  // several ranks share few cores here
  all.insert(all.end(), added.begin(), added.end());
  return all;
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

template <typename Condition>
bool came_true(std::chrono::seconds limit, const Condition& condition) {
  const auto deadline = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace

std::vector<std::string> ChildResult::errors() const {
  std::vector<std::string> lines;
  std::istringstream stream(err);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("pardiff: error: ")) lines.push_back(line);
  }
  return lines;
}

ChildProcess::ChildProcess(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  std::string name = (fs::temp_directory_path() / "pardiff-child-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
  folder_ = name;
  const std::string out = folder_ / "out", err = folder_ / "err";
  const auto texts = environment_with(environment);
  const auto argv = pointers_to(arguments), envp = pointers_to(texts);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("cannot fork");
  if (pid_ == 0) {
    setpgid(0, 0);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
    execvpe(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  setpgid(pid_, pid_);
}

ChildProcess::~ChildProcess() {
  kill(-pid_, SIGKILL);
  if (!reaped_) waitpid(pid_, nullptr, 0);
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::vector<pid_t> ChildProcess::children() const {
  std::istringstream stream(content("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children"));
  std::vector<pid_t> children;
  for (pid_t child; stream >> child;) children.push_back(child);
  return children;
}

bool ChildProcess::says(const std::string& text, std::chrono::seconds limit) const {
  return came_true(limit, [&] { return content(folder_ / "err").find(text) != std::string::npos; });
}

void ChildProcess::send(int signal) const { kill(pid_, signal); }
void ChildProcess::send_to_group(int signal) const { kill(-pid_, signal); }

ChildResult ChildProcess::wait(std::chrono::seconds limit) {
  ChildResult result;
  int status = 0;
  reaped_ = came_true(limit, [&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
  result.timed_out = !reaped_;
  if (reaped_ && WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (reaped_ && WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.out = content(folder_ / "out");
  result.err = content(folder_ / "err");
  return result;
}

bool ChildProcess::group_is_gone(std::chrono::seconds limit) const {
  return came_true(limit, [&] { return kill(-pid_, 0) != 0; });
}

ChildResult run_child(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  return ChildProcess(arguments, environment).wait();
}

int free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("no free port");
  }
  close(descriptor);
  return ntohs(address.sin_port);
}

}  // namespace pardiff::testing
