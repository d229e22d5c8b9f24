#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "comm/backends/threads.h"
#include "comm/rendezvous.h"

namespace pardiff {
namespace {

// What the threads share.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> texts;
  std::map<std::string, int64_t> counters;
  std::string failure;
  std::shared_ptr<comm::ThreadHub> hub = comm::make_thread_hub();

  void fail(const std::string& why) {
    comm::fail_thread_hub(*hub, why);
    const std::lock_guard lock(mutex);
    failure = why;
    changed.notify_all();
  }
};

class ThreadRendezvous : public comm::Rendezvous {
 public:
  ThreadRendezvous(std::shared_ptr<Meeting> meeting, std::chrono::milliseconds timeout)
      : meeting_(std::move(meeting)), timeout_(timeout) {}

  void publish(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(meeting_->mutex);
    meeting_->texts[key] = value;
    meeting_->changed.notify_all();
  }

  std::string fetch(const std::string& key) override {
    std::unique_lock lock(meeting_->mutex);
    const bool came = meeting_->changed.wait_for(
        lock, timeout_, [&] { return meeting_->texts.count(key) > 0 || !meeting_->failure.empty(); });
    check<CommError>(meeting_->failure.empty(), meeting_->failure);
    check<CommError>(came, "waited ", timeout_.count(), " ms for '", key, "'.");
    return meeting_->texts[key];
  }

  int64_t count(const std::string& key, int64_t add) override {
    const std::lock_guard lock(meeting_->mutex);
    return meeting_->counters[key] += add;
  }

  std::shared_ptr<comm::GroupBackend> make_group(const std::string& name, int rank, int size, at::Device) override {
    return comm::make_thread_group(meeting_->hub, name, rank, size, timeout_);
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

int run_as_threads(int size, const std::function<void(World&)>& work, const WorldOptions& options) {
  check<UsageError>(size >= 1, "cannot run on ", size, " ranks.");
  const auto meeting = std::make_shared<Meeting>();
  std::exception_ptr first_error;
  std::mutex error_mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        LaunchEnv env;
        env.rank = env.local_rank = rank;
        env.world_size = env.local_world_size = size;
        env.launcher = "threads";
        World world(env, options, std::make_shared<ThreadRendezvous>(meeting, std::chrono::seconds(options.timeout_s)));
        work(world);
      } catch (const std::exception& error) {
        const std::lock_guard lock(error_mutex);
        if (!first_error) {
          first_error = std::current_exception();
          meeting->fail(text_of("rank ", rank, " failed: ", error.what()));
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
  return 0;
}

}  // namespace pardiff
