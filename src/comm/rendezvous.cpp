#include "comm/rendezvous.h"

#include <pardiff/core/check.h>
#include <pardiff/core/device.h>
#include <pardiff/core/log.h>

#include <cstdlib>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "comm/backends/gloo.h"
#include "comm/backends/liveness.h"
#include "comm/backends/nccl.h"
#include "comm/backends/shm.h"
#include "comm/backends/staged.h"
#include "comm/host_memory.h"

namespace pardiff::comm {
namespace {

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// The transports' and the store's own limit. Whoever waits is ended by the watch over the ranks, not by the length of
// an operation. (The engine keeps milliseconds in an int in places.)
constexpr std::chrono::milliseconds kNever = std::chrono::hours(20 * 24);

class StoreOfTexts : public TextStore {
 public:
  explicit StoreOfTexts(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(key, bytes_of(value)); }
  std::string get(const std::string& key) override {
    const auto bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }
  bool has(const std::string& key) override { return store_->check({key}); }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

using TcpStore = c10::intrusive_ptr<c10d::TCPStore>;

// In a thread of its own: where another kind of server listens, the engine waits for its answer for ever.
TcpStore connected_within(std::chrono::milliseconds patience, const std::string& address,
                          const c10d::TCPStoreOptions& options) {
  std::packaged_task<TcpStore()> task([=] { return c10::make_intrusive<c10d::TCPStore>(address, options); });
  auto made = task.get_future();
  std::thread(std::move(task)).detach();
  check<CommError>(made.wait_for(patience + std::chrono::seconds(1)) == std::future_status::ready,
                   "nothing that speaks its language answers");
  return made.get();
}

// `patience`: for the server to be there.
c10::intrusive_ptr<c10d::Store> connected(const LaunchEnv& env, bool serve, std::chrono::milliseconds patience) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(env.master_port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = patience;
  try {
    const auto tcp = connected_within(patience, env.master_address, options);
    tcp->setTimeout(kNever);
    return c10::make_intrusive<c10d::PrefixStore>(store_prefix(), tcp);
  } catch (const std::exception& error) {
    auto reason = first_line(error.what());
    reason.erase(reason.find_last_not_of(". ") + 1);
    fail<CommError>("rank ", env.rank, " cannot reach the rendezvous at ", env.master_address, ":", env.master_port,
                    ": ", reason, ". Check MASTER_ADDR and MASTER_PORT.");
  }
}

// The first process of a host makes the board. One that cannot open it (another user's limits, say) has its own.
std::shared_ptr<Board> meet_on_board(TextStore& store, int ranks) {
  const auto key = text_of("board/", host_identity());
  if (store.add(key + "/seekers", 1) == 1) {
    auto board = Board::create(ranks);
    store.set(key, board->address());
    return board;
  }
  auto board = Board::open(store.get(key), ranks);
  return board ? board : Board::create(ranks);
}

class TcpRendezvous : public Rendezvous {
 public:
  TcpRendezvous(const LaunchEnv& env, const WorldOptions& world)
      : env_(env),
        timeout_(world.timeout_s),
        comm_(world.comm),
        shm_(make_shm_engine([this] { liveness_->check_alive(); }, allowed_cores() >= env.local_world_size)) {
    store_ = connected(env, !env.store_is_served && env.rank == 0, timeout_);
    guarded("board", [&] {
      StoreOfTexts texts(store_);
      liveness_ = std::make_shared<Liveness>(env, meet_on_board(texts, env.world_size), timeout_, [env] {
        return std::make_unique<StoreOfTexts>(connected(env, false, std::chrono::seconds(2)));
      });
    });
  }

  Liveness* liveness() override { return liveness_.get(); }

  void publish(const std::string& key, const std::string& value) override {
    guarded(key, [&] { store_->set(key, bytes_of(value)); });
  }

  std::string fetch(const std::string& key) override {
    std::string value;
    const Waiting waiting(liveness_.get(), "rendezvous", 0, "exchange", -1);
    guarded(key, [&] {
      const auto bytes = store_->get(key);
      value.assign(bytes.begin(), bytes.end());
    });
    return value;
  }

  int64_t count(const std::string& key, int64_t add) override {
    int64_t value = 0;
    guarded(key, [&] { value = store_->add(key, add); });
    return value;
  }

  std::shared_ptr<GroupBackend> make_group(const std::string& name, int rank, int size, at::Device device) override {
    auto group = watched(make_unwatched_group(name, rank, size, device), name, liveness_);
    if (!std::exchange(have_all_come_, true)) meet_between_hosts();  // the first is the world's
    return group;
  }

  // Who asks for no shared memory (--comm gloo) gets none here either.
  std::shared_ptr<HostMemory> host_memory(const std::string& key, const std::vector<size_t>& block_bytes) override {
    if (comm_ == "gloo" || env_.local_world_size == 1) return nullptr;
    const auto place = text_of("host-memory/", host_identity(), "/", key);
    if (count(place + "/seekers", 1) == 1) {
      auto memory = made_unless_refused([&] { return HostMemory::create(block_bytes, liveness_); });
      publish(place, memory ? memory->address() : std::string());
      return memory;
    }
    const auto address = fetch(place);
    if (address.empty()) return nullptr;
    return made_unless_refused([&] { return HostMemory::open(address, block_bytes, liveness_); });
  }

 private:
  // A rank that may not share memory has its own.
  template <typename Make>
  static std::shared_ptr<HostMemory> made_unless_refused(const Make& make) {
    try {
      return make();
    } catch (const CommError& refusal) {
      note(text_of("This rank keeps weights of its own: ", refusal.what()));
      return nullptr;
    }
  }

  std::shared_ptr<GroupBackend> make_unwatched_group(const std::string& name, int rank, int size, at::Device device) {
    if (device.is_cpu()) {
      if (auto shared = group_in_shared_memory(name, rank, size)) return shared;
    }
    std::shared_ptr<GroupBackend> group;
    guarded(name, [&] {
      const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
      if (device.is_cuda() && comm_ != "gloo") {
        group = make_nccl_group(store, rank, size, device.index(), kNever);
        return;
      }
      group = make_gloo_group(store, rank, size, kNever, env_.local_world_size == env_.world_size);
      // The engine's Gloo takes CUDA tensors in collectives only, and the ring sends from rank to rank.
      if (device.is_cuda()) group = stage_through_host(std::move(group));
    });
    return group;
  }

  void meet_between_hosts() {
    if (liveness_->board().is_complete()) return;
    publish(text_of("board-of/", env_.rank), liveness_->board().address());
    std::vector<std::string> boards;
    for (int rank = 0; rank < env_.world_size; ++rank) boards.push_back(fetch(text_of("board-of/", rank)));
    liveness_->all_have_come(boards);
  }

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
      fail<LostPeer>("the rendezvous failed at '", key, "': ", first_line(error.what()),
                     ". Another rank is gone or late.");
    }
  }

  LaunchEnv env_;
  std::chrono::seconds timeout_;
  std::string comm_;
  std::shared_ptr<ShmEngine> shm_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Liveness> liveness_;
  bool have_all_come_ = false;
};

}  // namespace

std::string store_prefix() {
  const char* restart = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return std::string("pardiff/") + (restart ? restart : "0");
}

std::shared_ptr<Rendezvous> meet_over_tcp(const LaunchEnv& env, const WorldOptions& options) {
  return std::make_shared<TcpRendezvous>(env, options);
}

struct StoreServer::State {
  c10::intrusive_ptr<c10d::TCPStore> tcp;
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<Board> board;
};

StoreServer::StoreServer(int ranks) : state_(std::make_unique<State>()) {
  c10d::TCPStoreOptions options;
  options.port = 0;  // any free one
  options.isServer = true;
  options.waitWorkers = false;
  state_->tcp = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  state_->store = c10::make_intrusive<c10d::PrefixStore>(store_prefix(), state_->tcp);
  StoreOfTexts texts(state_->store);
  state_->board = meet_on_board(texts, ranks);
}

StoreServer::~StoreServer() = default;
int StoreServer::port() const { return state_->tcp->getPort(); }

// A rank that shares no board with the launcher claims in the store.
bool StoreServer::must_report() const {
  if (state_->board->claim_report() && state_->store->add(kFailedKey, 1) == 1) return true;
  for (int tries = 0; tries < 1000 && !reported_exit_code(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return !reported_exit_code();
}

std::optional<int> StoreServer::reported_exit_code() const {
  if (const int code = state_->board->reported_exit_code()) return code;
  if (!state_->store->check({kReportedKey})) return std::nullopt;
  const auto bytes = state_->store->get(kReportedKey);
  return std::stoi(std::string(bytes.begin(), bytes.end()));
}

std::string StoreServer::last_seen(int rank) const {
  bool is_whole = false;
  return state_->board->slot(rank).read(is_whole).doing.words();
}

}  // namespace pardiff::comm
