#include "comm/backends/liveness.h"

#include <pardiff/core/check.h>
#include <pardiff/core/log.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "core/descriptor.h"

namespace pardiff::comm {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr auto kTick = Milliseconds(100);
constexpr auto kBetweenHosts = Milliseconds(500);  // a beat of the store
constexpr auto kGrace = Milliseconds(1000);        // for a rank to end itself once there is a failure
constexpr auto kReport = Milliseconds(10'000);     // for a rank to print its own
constexpr auto kFirstWord = Milliseconds(1000);    // for whoever knows more to report it
constexpr auto kPause = Milliseconds(2);

template <typename Condition>
bool came_true_within(Milliseconds limit, const Condition& condition) {
  const auto deadline = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

template <size_t Room>
void copy_text(char (&room)[Room], const std::string& text) {
  const auto size = std::min(text.size(), Room - 1);
  std::memcpy(room, text.data(), size);
  std::memset(room + size, 0, Room - size);
}

Descriptor descriptor_of_process(int pid) { return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

// What this rank has noticed of another.
struct Peer {
  Descriptor process;  // of this host's, while it lives
  bool is_met = false;
  int64_t pulse = 0, version = 0;
  Milliseconds stood_still{0}, waited{0};
};

// Between hosts the first rank of each goes through the store for all of its host.
struct Hosts {
  std::vector<int> own;          // the ranks of this one
  std::vector<int> first_ranks;  // of the others
};

Hosts hosts_of(const std::vector<std::string>& boards, int rank) {
  Hosts hosts;
  for (int peer = 0; peer < std::ssize(boards); ++peer) {
    if (boards[peer] == boards[rank]) {
      hosts.own.push_back(peer);
    } else if (std::find(boards.begin(), boards.begin() + peer, boards[peer]) == boards.begin() + peer) {
      hosts.first_ranks.push_back(peer);
    }
  }
  return hosts;
}

std::string slots_key(int first_rank) { return text_of("slots/", first_rank); }

}  // namespace

struct Liveness::State {
  LaunchEnv env;
  std::shared_ptr<Board> board;
  std::chrono::seconds timeout;
  ConnectToStore connect;

  mutable std::mutex mutex;
  Doing doing;
  std::string failure;

  std::atomic<bool> have_all_come = false, is_reporting = false, is_done = false;
  Descriptor end_of_watch{eventfd(0, EFD_CLOEXEC)};
  std::thread watching;
  std::vector<Peer> peers;  // the watching thread's, by rank
  Descriptor launcher;      // the same
  Milliseconds absent_for{0};

  Hosts hosts;
  std::thread carrying;
  std::atomic<bool> carries = false, carries_last = false;
  std::atomic<int64_t> carried = 0;

  Slot& own() const { return board->slot(env.rank); }
  bool serves() const { return !env.store_is_served && env.rank == 0; }
  std::string own_words() const {
    const std::lock_guard lock(mutex);
    return doing.words();
  }
  std::string current_failure() const {
    const std::lock_guard lock(mutex);
    return failure;
  }
  void set_failure(const std::string& why) {
    const std::lock_guard lock(mutex);
    if (failure.empty()) failure = why;
  }

  bool claim();
  void confirm(int exit_code);
  bool is_claimed() const { return board->is_claimed() || board->failed_elsewhere() != 0; }

  void watch_until_over();
  Milliseconds sleep_a_tick(Clock::time_point& last);
  void look(Milliseconds passed);
  void look_at(int rank, Milliseconds passed);
  void look_for_contradiction(int rank, const Slot::Image& seen);
  void look_for_standstill();
  void look_for_absent(Milliseconds passed);
  bool is_dead(const Descriptor& process) const;
  void lose(const std::string& message, bool launcher_knows_more);
  std::string name_of(int rank) const;

  void carry_until_over();
  void give(TextStore& store) const;
  void take(const std::string& slots) const;
};

// ---- who reports

bool Liveness::State::claim() {
  if (!board->claim_report()) return false;
  if (board->is_complete()) return true;
  try {
    return connect()->add(kFailedKey, 1) == 1;
  } catch (const std::exception&) {
    return true;  // no store to ask: one rank of each host speaks
  }
}

void Liveness::State::confirm(int exit_code) {
  board->confirm_report(exit_code);
  if (board->is_complete()) return;
  try {
    connect()->set(kReportedKey, std::to_string(exit_code));
  } catch (const std::exception&) {
    // Whoever would read it is gone.
  }
}

bool Liveness::claim_report(bool is_consequence) {
  if (is_consequence) came_true_within(2 * kFirstWord, [this] { return state_->is_claimed(); });
  state_->is_reporting = true;
  state_->own().stage = Stage::failing;
  if (state_->claim()) return true;
  came_true_within(kFirstWord, [this] { return state_->board->reported_exit_code() != 0; });
  return false;
}

void Liveness::confirm_report(int exit_code) {
  state_->confirm(exit_code);
  // Those who share no board with this rank learn it from the store, which may end with this one.
  if (state_->serves()) came_true_within(2 * kFirstWord, [this] { return state_->board->is_complete(); });
}

// ---- the watching thread

void Liveness::State::watch_until_over() {
  auto last = Clock::now();
  Milliseconds failing{0};
  while (true) {
    const auto passed = sleep_a_tick(last);
    if (is_done) return;
    own().pulse.fetch_add(1);
    if (is_reporting || !current_failure().empty()) {
      failing += passed;
      if (failing > (is_reporting ? kReport : kGrace)) std::_Exit(1);
      continue;
    }
    look(passed);
  }
}

// Less at the end, and when a process of this host ends. Returns how long this rank was awake: one that was stopped
// itself, or slept with its machine, must not blame the others for that time.
Milliseconds Liveness::State::sleep_a_tick(Clock::time_point& last) {
  std::vector<pollfd> ends = {{.fd = end_of_watch.get(), .events = POLLIN, .revents = 0}};
  if (current_failure().empty() && !is_reporting) {
    ends.push_back({.fd = launcher.get(), .events = POLLIN, .revents = 0});
    for (const auto& peer : peers) ends.push_back({.fd = peer.process.get(), .events = POLLIN, .revents = 0});
  }
  poll(ends.data(), ends.size(), kTick.count());
  const auto now = Clock::now();
  const auto passed = std::chrono::duration_cast<Milliseconds>(now - last);
  last = now;
  return std::min(passed, 10 * kTick);
}

bool Liveness::State::is_dead(const Descriptor& process) const {
  pollfd state = {.fd = process.get(), .events = POLLIN, .revents = 0};
  return process.get() >= 0 && poll(&state, 1, 0) > 0;
}

void Liveness::State::look(Milliseconds passed) {
  if (is_claimed()) return set_failure("another rank has failed.");
  for (int rank = 0; rank < env.world_size; ++rank) look_at(rank, passed);
  look_for_standstill();
  look_for_absent(passed);
  if (board->store_is_gone() != 0) {
    lose(text_of("the rendezvous, which ", env.store_is_served ? "the launcher" : "rank 0", " serves, is gone; rank ",
                 env.rank, " is ", own_words(), "."),
         false);
  }
  if (is_dead(launcher))
    lose(text_of("the launcher of rank ", env.rank, " has ended; it is ", own_words(), "."), false);
}

void Liveness::State::look_at(int rank, Milliseconds passed) {
  auto& peer = peers[rank];
  const auto& slot = board->slot(rank);
  bool is_whole = false;
  const auto seen = slot.read(is_whole);
  peer.waited = seen.doing.waits != 0 && seen.version == peer.version ? peer.waited + passed : Milliseconds(0);
  peer.version = seen.version;
  const auto stage = slot.stage.load();
  if (rank == env.rank || stage == Stage::absent) return;
  if (!peer.is_met && slot.is_local != 0) {
    peer.is_met = true;
    peer.process = descriptor_of_process(slot.pid);
    if (peer.process.get() < 0 && errno == ESRCH && slot.stage != Stage::left) {
      lose(text_of(name_of(rank), " has ended; it was ", seen.doing.words(), ". The other ranks end too."), true);
    }
  }
  if (is_dead(peer.process)) {
    peer.process.reset();
    if (slot.stage == Stage::left) return;
    return lose(text_of(name_of(rank), " has ended; it was ", seen.doing.words(), ". The other ranks end too."), true);
  }
  if (stage == Stage::left) return;
  peer.stood_still = seen.pulse == peer.pulse ? peer.stood_still + passed : Milliseconds(0);
  peer.pulse = seen.pulse;
  if (peer.stood_still > timeout) {
    lose(text_of(name_of(rank), " has stood still for ", timeout.count(), " s (--timeout); it was ", seen.doing.words(),
                 ". The other ranks end too."),
         false);
    // Nobody waits for it any longer, and it could not end itself.
    if (peer.process.get() >= 0) syscall(SYS_pidfd_send_signal, peer.process.get(), SIGKILL, nullptr, 0);
    return;
  }
  if (is_whole) look_for_contradiction(rank, seen);
}

void Liveness::State::look_for_contradiction(int rank, const Slot::Image& seen) {
  Doing ours;
  {
    const std::lock_guard lock(mutex);
    ours = doing;
  }
  if (!ours.contradicts(seen.doing)) return;
  lose(text_of("rank ", env.rank, " is ", ours.words(), ", where ", name_of(rank), " is ", seen.doing.words(),
               ": operation ", ours.call, " of this group. The ranks do different things."),
       false);
}

// Ranks of different groups can wait for each other without a contradiction within either.
void Liveness::State::look_for_standstill() {
  std::vector<std::string> waits;
  for (int rank = 0; rank < env.world_size; ++rank) {
    const auto stage = board->slot(rank).stage.load();
    if (stage == Stage::left) continue;
    if (stage != Stage::running || peers[rank].waited <= timeout) return;
    bool is_whole = false;
    waits.push_back(text_of("rank ", rank, " is ", board->slot(rank).read(is_whole).doing.words()));
  }
  if (waits.empty()) return;
  lose(text_of("all ranks have waited for each other for ", timeout.count(), " s (--timeout): ", joined(waits, "; "),
               ". The ranks do different things."),
       false);
}

void Liveness::State::look_for_absent(Milliseconds passed) {
  std::vector<int> absent;
  for (int rank = 0; rank < env.world_size; ++rank) {
    if (board->slot(rank).stage == Stage::absent) absent.push_back(rank);
  }
  absent_for = absent.empty() ? Milliseconds(0) : absent_for + passed;
  if (absent_for <= timeout) return;
  lose(text_of("rank ", env.rank, " is ", own_words(), ", and not all of ", env.world_size, " ranks have come within ",
               timeout.count(), " s (--timeout). Not seen: rank ", joined(absent), "."),
       false);
}

void Liveness::State::lose(const std::string& message, bool launcher_knows_more) {
  if (!current_failure().empty()) return;
  if (launcher_knows_more && env.launcher == "pardiff") {
    came_true_within(kFirstWord, [this] { return is_claimed(); });
  }
  if (claim()) {
    report_error(message);
    confirm(1);
  }
  set_failure(message);
}

std::string Liveness::State::name_of(int rank) const {
  return text_of("rank ", rank, " (process ", board->slot(rank).pid.load(),
                 board->slot(rank).is_local != 0 ? ")" : " of another host)");
}

// ---- between hosts

void Liveness::State::carry_until_over() {
  try {
    const auto store = connect();
    while (!is_done) {
      const bool is_last = carries_last;
      give(*store);
      for (const int first : hosts.first_ranks) take(store->get(slots_key(first)));
      if (store->has(kFailedKey)) board->failed_elsewhere() = 1;
      carried.fetch_add(1);
      if (is_last) break;
      came_true_within(kBetweenHosts, [this] { return is_done || carries_last; });
    }
  } catch (const std::exception&) {
    board->store_is_gone() = 1;
  }
  carries = false;
}

void Liveness::State::give(TextStore& store) const {
  std::string bytes;
  for (const int rank : hosts.own) {
    bool is_whole = false;
    const auto image = board->slot(rank).read(is_whole);
    const int64_t number = rank;
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    bytes.append(reinterpret_cast<const char*>(&image), sizeof image);
  }
  store.set(slots_key(env.rank), bytes);
}

void Liveness::State::take(const std::string& slots) const {
  int64_t rank = 0;
  Slot::Image image;
  constexpr size_t kEntry = sizeof rank + sizeof image;
  for (size_t at = 0; at + kEntry <= slots.size(); at += kEntry) {
    std::memcpy(&rank, slots.data() + at, sizeof rank);
    std::memcpy(&image, slots.data() + at + sizeof rank, sizeof image);
    if (rank >= 0 && rank < board->size() && board->slot(static_cast<int>(rank)).is_local == 0) {
      board->slot(static_cast<int>(rank)).write(image);
    }
  }
}

// ---- the rank's own thread

namespace {

// Signals are for the thread that knows what they should interrupt.
template <typename Work>
std::thread thread_without_signals(const Work& work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread thread(work);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

Liveness::Liveness(const LaunchEnv& env, std::shared_ptr<Board> board, std::chrono::seconds timeout,
                   ConnectToStore connect)
    : state_(std::make_shared<State>()) {
  state_->env = env;
  state_->board = std::move(board);
  state_->timeout = timeout;
  state_->connect = std::move(connect);
  state_->peers.resize(env.world_size);
  if (env.launcher == "torchrun") state_->launcher = descriptor_of_process(getppid());
  auto& slot = state_->own();
  slot.pid = getpid();
  slot.stage = Stage::running;
  slot.is_local = 1;
  state_->watching = thread_without_signals([state = state_.get()] { state->watch_until_over(); });
}

Liveness::~Liveness() {
  state_->is_done = true;
  eventfd_write(state_->end_of_watch.get(), 1);
  state_->watching.join();
  if (!state_->carrying.joinable()) return;
  // A store that does not answer may hold its thread for ever; the thread keeps what it uses.
  came_true_within(kGrace, [this] { return !state_->carries; });
  if (state_->carries) {
    state_->carrying.detach();
  } else {
    state_->carrying.join();
  }
}

const Board& Liveness::board() const { return *state_->board; }
int Liveness::rank() const { return state_->env.rank; }

void Liveness::all_have_come(const std::vector<std::string>& boards) {
  state_->hosts = hosts_of(boards, state_->env.rank);
  const bool is_first = state_->hosts.own.front() == state_->env.rank;
  if (state_->hosts.first_ranks.empty() || !is_first) return;
  state_->carries = true;
  state_->carrying = thread_without_signals([state = state_] { state->carry_until_over(); });
}

void Liveness::check_alive() const {
  const auto why = state_->current_failure();
  check<LostPeer>(why.empty(), why);
}

void Liveness::begin_wait(const std::string& group, uint64_t group_hash, const char* operation, int64_t call) {
  const auto place = current_place();
  const std::lock_guard lock(state_->mutex);
  auto& doing = state_->doing;
  copy_text(doing.operation, operation);
  copy_text(doing.group, group);
  copy_text(doing.stage, place.stage);
  copy_text(doing.block, place.block);
  doing.group_hash = group_hash;
  doing.call = call;
  doing.step = place.step;
  doing.block_index = place.block_index;
  doing.waits = 1;
  state_->own().write(doing);
}

std::string Liveness::words() const { return state_->own_words(); }

void Liveness::end_wait() {
  const std::lock_guard lock(state_->mutex);
  state_->doing.waits = 0;
  state_->own().write(state_->doing);
}

void Liveness::leave() {
  auto& state = *state_;
  state.own().stage = Stage::left;
  const auto have_left = [&](int rank) { return state.board->slot(rank).stage == Stage::left; };
  const auto wait_for = [&](const auto& condition) {
    while (!condition()) {
      check_alive();
      std::this_thread::sleep_for(kPause);
    }
  };
  if (state.serves()) {
    wait_for([&] {
      for (int rank = 0; rank < state.env.world_size; ++rank) {
        if (!have_left(rank)) return false;
      }
      return true;
    });
  }
  if (state.carries) {
    wait_for([&] { return std::all_of(state.hosts.own.begin(), state.hosts.own.end(), have_left); });
    state.carries_last = true;
    wait_for([&] { return !state.carries; });
  }
  state.is_done = true;
}

}  // namespace pardiff::comm
