#include "comm/rendezvous.h"

#include <pardiff/core/check.h>
#include <pardiff/core/device.h>
#include <pardiff/core/log.h>

#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/backends/gloo.h"
#include "comm/backends/nccl.h"
#include "comm/backends/shm.h"
#include "comm/backends/staged.h"

namespace pardiff::comm {
namespace {

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

class TcpRendezvous : public Rendezvous {
 public:
  TcpRendezvous(const LaunchEnv& env, const WorldOptions& world)
      : timeout_(std::chrono::seconds(world.timeout_s)),
        comm_(world.comm),
        shm_(make_shm_engine(timeout_, allowed_cores() >= env.local_world_size)),
        one_host_(env.local_world_size == env.world_size) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(env.master_port);
    options.isServer = !env.store_is_served && env.rank == 0;
    options.waitWorkers = false;
    options.timeout = timeout_;
    try {
      tcp_ = c10::make_intrusive<c10d::TCPStore>(env.master_address, options);
    } catch (const std::exception& error) {
      fail<CommError>("rank ", env.rank, " cannot reach the rendezvous at ", env.master_address, ":", env.master_port,
                      ": ", first_line(error.what()), ". Check MASTER_ADDR and MASTER_PORT.");
    }
    store_ = c10::make_intrusive<c10d::PrefixStore>(store_prefix(), tcp_);
  }

  void publish(const std::string& key, const std::string& value) override {
    guarded(key, [&] { store_->set(key, bytes_of(value)); });
  }

  std::string fetch(const std::string& key) override {
    std::string value;
    guarded(key, [&] {
      const auto bytes = store_->get(key);
      value.assign(bytes.begin(), bytes.end());
    });
    return value;
  }

  bool has(const std::string& key) override {
    bool found = false;
    guarded(key, [&] { found = store_->check({key}); });
    return found;
  }

  int64_t count(const std::string& key, int64_t add) override {
    int64_t value = 0;
    guarded(key, [&] { value = store_->add(key, add); });
    return value;
  }

  std::shared_ptr<GroupBackend> make_group(const std::string& name, int rank, int size, at::Device device) override {
    if (device.is_cpu()) {
      if (auto shared = group_in_shared_memory(name, rank, size)) return shared;
    }
    std::shared_ptr<GroupBackend> group;
    guarded(name, [&] {
      const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
      if (device.is_cuda() && comm_ != "gloo") {
        group = make_nccl_group(store, rank, size, device.index(), timeout_);
        return;
      }
      group = make_gloo_group(store, rank, size, timeout_, one_host_);
      // The engine's Gloo takes CUDA tensors in collectives only, and the ring sends from rank to rank.
      if (device.is_cuda()) group = stage_through_host(std::move(group));
    });
    return group;
  }

 private:
  // Null: this group goes over Gloo, on all of its ranks.
  std::shared_ptr<GroupBackend> group_in_shared_memory(const std::string& name, int rank, int size) {
    if (comm_ == "gloo") return nullptr;
    int round = 0;
    const auto exchange = [&](const std::string& text) {
      const auto key = text_of("shm/", name, "/", round++, "/");
      publish(key + std::to_string(rank), text);
      std::vector<std::string> texts;
      for (int peer = 0; peer < size; ++peer) texts.push_back(fetch(key + std::to_string(peer)));
      return texts;
    };
    std::string reason;
    auto group = make_shm_group(shm_, exchange, rank, size, reason);
    check<ConfigError>(group || comm_ != "shm", "--comm shm cannot be used: ", reason, ". Use --comm gloo.");
    if (!group) note(text_of("Gloo carries the group '", name, "': ", reason, "."));
    return group;
  }

  template <typename Action>
  void guarded(const std::string& key, const Action& action) {
    try {
      action();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail<CommError>("the rendezvous failed at '", key, "': ", first_line(error.what()),
                      ". Another rank is gone or late.");
    }
  }

  std::chrono::milliseconds timeout_;
  std::string comm_;
  std::shared_ptr<ShmEngine> shm_;
  bool one_host_;
  c10::intrusive_ptr<c10d::TCPStore> tcp_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

std::string store_prefix() {
  const char* restart = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return std::string("pardiff/") + (restart ? restart : "0");
}

std::shared_ptr<Rendezvous> meet_over_tcp(const LaunchEnv& env, const WorldOptions& options) {
  return std::make_shared<TcpRendezvous>(env, options);
}

namespace {

constexpr const char* kFailed = "failed";      // how many ranks have failed
constexpr const char* kReported = "reported";  // the exit code of the failure that has been printed
constexpr auto kPause = std::chrono::milliseconds(20);

template <typename Condition>
bool came_true_within(std::chrono::milliseconds limit, const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

// Another rank has claimed the report; leaving before it is printed could end that rank too early.
void wait_for_report(Rendezvous& rendezvous) {
  try {
    came_true_within(std::chrono::seconds(1), [&] { return rendezvous.has(kReported); });
  } catch (const std::exception&) {
    // It has been printed, and whoever serves the rendezvous has left.
  }
}

}  // namespace

bool claim_failure(Rendezvous& rendezvous, bool is_consequence) {
  try {
    if (is_consequence) came_true_within(std::chrono::seconds(2), [&] { return rendezvous.has(kFailed); });
    if (rendezvous.count(kFailed, 1) == 1) return true;
  } catch (const std::exception&) {
    return !is_consequence;  // the rendezvous itself is gone
  }
  wait_for_report(rendezvous);
  return false;
}

void confirm_report(Rendezvous& rendezvous, int exit_code) {
  try {
    rendezvous.publish(kReported, std::to_string(exit_code));
  } catch (const std::exception&) {
    // Whoever would read it is gone.
  }
}

void wait_for_claims(Rendezvous& rendezvous, int ranks) {
  try {
    came_true_within(std::chrono::seconds(1), [&] { return rendezvous.count(kFailed, 0) >= ranks; });
  } catch (const std::exception&) {
    // Nobody left to wait for.
  }
}

struct StoreServer::State {
  c10::intrusive_ptr<c10d::TCPStore> tcp;
  c10::intrusive_ptr<c10d::Store> store;
};

StoreServer::StoreServer() : state_(std::make_unique<State>()) {
  c10d::TCPStoreOptions options;
  options.port = 0;  // any free one
  options.isServer = true;
  options.waitWorkers = false;
  state_->tcp = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  state_->store = c10::make_intrusive<c10d::PrefixStore>(store_prefix(), state_->tcp);
}

StoreServer::~StoreServer() = default;
int StoreServer::port() const { return state_->tcp->getPort(); }
bool StoreServer::claim_failure() const { return state_->store->add(kFailed, 1) == 1; }

std::optional<int> StoreServer::reported_exit_code() const {
  if (!state_->store->check({kReported})) return std::nullopt;
  const auto bytes = state_->store->get(kReported);
  return std::stoi(std::string(bytes.begin(), bytes.end()));
}

}  // namespace pardiff::comm
