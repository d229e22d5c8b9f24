#include "comm/backends/shm.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <mutex>
#include <sstream>
#include <utility>

#include "comm/backends/shm_segment.h"

namespace pardiff::comm {
namespace {

using Clock = std::chrono::steady_clock;

enum class Operation : uint32_t { all_to_all, all_gather, all_reduce, reduce_scatter, broadcast, send, barrier };

const char* name_of(Operation operation) {
  constexpr std::array<const char*, 7> kNames = {"all_to_all", "all_gather", "all_reduce", "reduce_scatter",
                                                 "broadcast",  "send",       "barrier"};
  const auto index = static_cast<size_t>(operation);
  return index < kNames.size() ? kNames[index] : "something unknown";
}

/// Goes before every message, so that ranks that do different things find out.
struct Envelope {
  Operation operation;
  uint32_t element_size;
  uint64_t bytes;
};

/// One message under way between this rank and one other. Keeps its tensor alive.
struct Transfer {
  at::Tensor tensor;  // flat
  Envelope envelope;
  int peer;
  size_t moved = 0;
  bool envelope_moved = false;

  std::byte* data() const { return static_cast<std::byte*>(tensor.data_ptr()); }
  bool is_done() const { return envelope_moved && moved == envelope.bytes; }
};
using Transfers = std::vector<std::shared_ptr<Transfer>>;

// The other end starts on a slice while the next one is copied.
constexpr size_t kSlice = size_t{256} << 10;

/// A rank's way to and from one other rank of a group.
struct Link {
  int pid = 0;
  int pid_descriptor = -1;
  bool ended_early = false;
  std::deque<std::shared_ptr<Transfer>> sends, receives;

  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() {
    if (pid_descriptor >= 0) close(pid_descriptor);
  }

  bool is_dead() const {
    if (ended_early) return true;
    pollfd state = {.fd = pid_descriptor, .events = POLLIN, .revents = 0};
    return pid_descriptor >= 0 && poll(&state, 1, 0) > 0;
  }
};

/// Shared memory, links and queues of one group on one rank.
class Exchange {
 public:
  Exchange(std::unique_ptr<ShmSegment> segment, int rank, const std::vector<int>& pids)
      : segment_(std::move(segment)), rank_(rank), links_(pids.size()) {
    for (size_t peer = 0; peer < pids.size(); ++peer) {
      links_[peer].pid = pids[peer];
      if (static_cast<int>(peer) == rank) continue;
      links_[peer].pid_descriptor = static_cast<int>(syscall(SYS_pidfd_open, pids[peer], 0));
      links_[peer].ended_early = links_[peer].pid_descriptor < 0 && errno == ESRCH;
    }
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(links_.size()); }
  Link& link(int peer) { return links_[peer]; }
  Doorbell& own_doorbell() const { return segment_->doorbell(rank_); }

  /// Moves what can be moved at once. Returns whether anything was. Throws: CommError if a peer does something else.
  bool progress() {
    bool moved = false;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      moved |= send_to(peer);
      moved |= receive_from(peer);
    }
    return moved;
  }

 private:
  bool send_to(int peer) {
    auto& queue = links_[peer].sends;
    auto& ring = segment_->ring(rank_, peer);
    bool moved = false;
    while (!queue.empty()) {
      auto& transfer = *queue.front();
      if (!transfer.envelope_moved) {
        if (ring.writable() < sizeof(Envelope)) break;
        ring.write(&transfer.envelope, sizeof(Envelope));
        transfer.envelope_moved = moved = true;
      }
      while (const size_t count = next_slice(transfer, ring.writable())) {
        ring.write(transfer.data() + transfer.moved, count);
        transfer.moved += count;
        moved = true;
        segment_->doorbell(peer).ring();
      }
      if (!transfer.is_done()) break;
      queue.pop_front();
    }
    return moved;
  }

  bool receive_from(int peer) {
    auto& queue = links_[peer].receives;
    auto& ring = segment_->ring(peer, rank_);
    bool moved = false;
    while (!queue.empty()) {
      auto& transfer = *queue.front();
      if (!transfer.envelope_moved) {
        if (ring.readable() < sizeof(Envelope)) break;
        Envelope sent = {};
        ring.read(&sent, sizeof(Envelope));
        check_same(sent, transfer);
        transfer.envelope_moved = moved = true;
      }
      while (const size_t count = next_slice(transfer, ring.readable())) {
        ring.read(transfer.data() + transfer.moved, count);
        transfer.moved += count;
        moved = true;
        if (transfer.envelope.bytes > kSlice) segment_->doorbell(peer).ring();
      }
      if (!transfer.is_done()) break;
      queue.pop_front();
    }
    return moved;
  }

  static size_t next_slice(const Transfer& transfer, size_t possible) {
    return std::min({kSlice, possible, transfer.envelope.bytes - transfer.moved});
  }

  void check_same(const Envelope& sent, const Transfer& transfer) const {
    const auto& own = transfer.envelope;
    check<CommError>(
        sent.operation == own.operation && sent.bytes == own.bytes && sent.element_size == own.element_size, "rank ",
        transfer.peer, " sent ", sent.bytes, " bytes of ", sent.element_size, "-byte elements in ",
        name_of(sent.operation), " where rank ", rank_, " expects ", own.bytes, " of ", own.element_size, " in ",
        name_of(own.operation), ". The ranks do different things.");
  }

  std::unique_ptr<ShmSegment> segment_;
  int rank_;
  std::vector<Link> links_;  // [peer]
};

}  // namespace

class ShmEngine {
 public:
  ShmEngine(std::function<void()> check_alive, bool may_spin)
      : check_alive_(std::move(check_alive)), may_spin_(may_spin) {}

  void add(const std::shared_ptr<Exchange>& exchange) {
    const std::lock_guard lock(mutex_);
    exchanges_.push_back(exchange);
  }

  void remove(const std::shared_ptr<Exchange>& exchange) {
    const std::lock_guard lock(mutex_);
    std::erase(exchanges_, exchange);
  }

  void start(Exchange& exchange, const Transfers& sends, const Transfers& receives) {
    const std::lock_guard lock(mutex_);
    for (const auto& transfer : receives) exchange.link(transfer->peer).receives.push_back(transfer);
    for (const auto& transfer : sends) exchange.link(transfer->peer).sends.push_back(transfer);
    exchange.progress();
  }

  /// Throws: LostPeer if a peer of an unfinished transfer is gone, or nothing moves and the engine's `check_alive`
  /// throws.
  void finish(Exchange& exchange, Operation operation, const Transfers& transfers) {
    auto last_move = Clock::now();
    int idle_rounds = 0;
    while (true) {
      const auto seen = exchange.own_doorbell().rings.load();
      bool moved = false;
      {
        const std::lock_guard lock(mutex_);
        for (const auto& other : exchanges_) moved |= other->progress();
        if (are_done(transfers)) return;
      }
      if (moved) {
        last_move = Clock::now();
        idle_rounds = 0;
      } else if (!pause(exchange, seen, ++idle_rounds, last_move)) {
        fail_unless_served(exchange, operation, transfers);
      }
    }
  }

 private:
  static bool are_done(const Transfers& transfers) {
    return std::all_of(transfers.begin(), transfers.end(), [](const auto& transfer) { return transfer->is_done(); });
  }

  // Spins, then yields, then sleeps. Returns false after a sleep that nobody ended.
  bool pause(Exchange& exchange, uint32_t seen, int idle_rounds, Clock::time_point last_move) const {
    constexpr auto kSpin = std::chrono::microseconds(100);
    constexpr int64_t kSleepMicroseconds = 20'000;
    if (may_spin_ && Clock::now() - last_move < kSpin) {
      __builtin_ia32_pause();
      return true;
    }
    if (idle_rounds == 1) {
      sched_yield();
      return true;
    }
    auto& bell = exchange.own_doorbell();
    bell.is_asleep.store(1);
    if (bell.rings.load() == seen) bell.sleep(seen, kSleepMicroseconds);
    bell.is_asleep.store(0);
    return bell.rings.load() != seen;
  }

  void fail_unless_served(Exchange& exchange, Operation operation, const Transfers& transfers) {
    for (const auto& transfer : transfers) {
      if (transfer->is_done()) continue;
      const int peer = transfer->peer;
      if (!exchange.link(peer).is_dead() || last_bytes_came(exchange, *transfer)) continue;
      fail<LostPeer>("rank ", exchange.rank(), " of ", exchange.size(), " failed in ", name_of(operation),
                     " over shm: rank ", peer, " of its group (process ", exchange.link(peer).pid,
                     ") has ended. Another rank is gone or late.");
    }
    check_alive_();
  }

  // A rank that has ended may have sent everything before.
  bool last_bytes_came(Exchange& exchange, const Transfer& transfer) {
    const std::lock_guard lock(mutex_);
    return exchange.progress() || transfer.is_done();
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Exchange>> exchanges_;
  std::function<void()> check_alive_;
  bool may_spin_;
};

namespace {

class ShmGroup : public GroupBackend {
 public:
  ShmGroup(std::shared_ptr<ShmEngine> engine, std::shared_ptr<Exchange> exchange)
      : GroupBackend(exchange->rank(), exchange->size()), engine_(std::move(engine)), exchange_(std::move(exchange)) {
    engine_->add(exchange_);
  }
  ~ShmGroup() override { engine_->remove(exchange_); }

  std::string transport() const override { return "shm"; }

  Pending all_to_all(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_counts,
                     const std::vector<int64_t>& input_counts) override {
    return spread(Operation::all_to_all, output.view({-1}).split_with_sizes(output_counts),
                  input.view({-1}).split_with_sizes(input_counts));
  }

  Pending all_gather(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts) override {
    return spread(Operation::all_gather, output.view({-1}).split_with_sizes(counts),
                  std::vector<at::Tensor>(size(), input.view({-1})));
  }

  Pending all_reduce(const at::Tensor& tensor) override {
    const auto flat = tensor.view({-1});
    if (size() == 2) return sum(Operation::all_reduce, flat, {flat, flat});
    // Every rank adds up a share, then all gather the shares: the bytes of a ring, and the same order everywhere.
    std::vector<int64_t> counts(size());
    for (int peer = 0; peer < size(); ++peer) {
      counts[peer] = flat.numel() * (peer + 1) / size() - flat.numel() * peer / size();
    }
    const auto shares = flat.split_with_sizes(counts);
    auto summed = std::make_shared<Pending>(sum(Operation::all_reduce, shares[rank()], shares));
    return Pending([this, shares, summed] {
      summed->wait();
      spread(Operation::all_reduce, shares, std::vector<at::Tensor>(size(), shares[rank()])).wait();
    });
  }

  Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<int64_t>& counts) override {
    return sum(Operation::reduce_scatter, output.view({-1}), input.view({-1}).split_with_sizes(counts));
  }

  Pending broadcast(const at::Tensor& tensor, int root) override {
    const auto flat = tensor.view({-1});
    Transfers sends, receives;
    if (rank() != root) {
      add(receives, Operation::broadcast, flat, root);
    } else {
      for (int peer = 0; peer < size(); ++peer) add(sends, Operation::broadcast, flat, peer);
    }
    return begin(Operation::broadcast, sends, receives);
  }

  Pending hop(const at::Tensor& sent, int to, const at::Tensor& received, int from) override {
    Transfers sends, receives;
    add(sends, Operation::send, sent.view({-1}), to);
    add(receives, Operation::send, received.view({-1}), from);
    return begin(Operation::send, sends, receives);
  }

  void barrier() override {
    const auto bytes = at::zeros({size()}, at::kByte);
    spread(Operation::barrier, bytes.split(1), std::vector<at::Tensor>(size(), at::zeros({1}, at::kByte))).wait();
  }

 private:
  // Nothing is sent to oneself, and nothing for an empty tensor, whose size both ends know.
  void add(Transfers& transfers, Operation operation, const at::Tensor& flat, int peer) const {
    if (peer == rank() || flat.numel() == 0) return;
    const auto bytes = static_cast<uint64_t>(flat.nbytes());
    transfers.push_back(
        std::make_shared<Transfer>(Transfer{.tensor = flat,
                                            .envelope = {.operation = operation,
                                                         .element_size = static_cast<uint32_t>(flat.element_size()),
                                                         .bytes = bytes},
                                            .peer = peer}));
  }

  Pending begin(Operation operation, const Transfers& sends, const Transfers& receives) {
    if (sends.empty() && receives.empty()) return {};
    engine_->start(*exchange_, sends, receives);
    Transfers all = receives;
    all.insert(all.end(), sends.begin(), sends.end());
    return Pending([this, operation, all] { engine_->finish(*exchange_, operation, all); });
  }

  // inputs[p] goes to rank p, outputs[p] comes from it. Peers in an order that keeps ranks from all writing to one.
  Pending spread(Operation operation, const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs) {
    Transfers sends, receives;
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size(), from = (rank() + size() - step) % size();
      add(sends, operation, inputs[to], to);
      add(receives, operation, outputs[from], from);
    }
    auto pending = begin(operation, sends, receives);
    if (outputs[rank()].numel() > 0 && outputs[rank()].data_ptr() != inputs[rank()].data_ptr()) {
      outputs[rank()].copy_(inputs[rank()]);
    }
    return pending;
  }

  // inputs[p] goes to rank p; what comes is added to the own input, in rank order, into `output`.
  Pending sum(Operation operation, const at::Tensor& output, const std::vector<at::Tensor>& inputs) {
    const auto& own = inputs[rank()];
    std::vector<at::Tensor> outputs;
    for (int peer = 0; peer < size(); ++peer) outputs.push_back(peer == rank() ? own : at::empty_like(own));
    auto arrived = std::make_shared<Pending>(spread(operation, outputs, inputs));
    return Pending([output, outputs, arrived] {
      arrived->wait();
      add_in_order(output, outputs);
    });
  }

  // `output` may be one of the parts.
  static void add_in_order(const at::Tensor& output, const std::vector<at::Tensor>& parts) {
    auto total = parts[0];
    for (size_t peer = 1; peer + 1 < parts.size(); ++peer) total = total + parts[peer];
    auto result = output;
    at::add_out(result, total, parts.back());
  }

  std::shared_ptr<ShmEngine> engine_;
  std::shared_ptr<Exchange> exchange_;
};

// What a rank tells the others before they share memory.
struct Introduction {
  std::string host;
  int pid = 0;
  int descriptor = -1;

  std::string text() const { return text_of(host, " ", pid, " ", descriptor); }
  static Introduction from(const std::string& text) {
    Introduction read;
    std::istringstream(text) >> read.host >> read.pid >> read.descriptor;
    return read;
  }
};

std::unique_ptr<ShmSegment> open_segment(const Introduction& first, int size, std::string& reason) {
  try {
    return ShmSegment::open(first.pid, first.descriptor, size);
  } catch (const CommError& error) {
    reason = error.what();
    return nullptr;
  }
}

}  // namespace

std::shared_ptr<ShmEngine> make_shm_engine(std::function<void()> check_alive, bool may_spin) {
  return std::make_shared<ShmEngine>(std::move(check_alive), may_spin);
}

std::shared_ptr<GroupBackend> make_shm_group(std::shared_ptr<ShmEngine> engine, const ExchangeTexts& exchange, int rank,
                                             int size, std::string& reason) {
  auto segment = rank == 0 ? ShmSegment::create(size) : nullptr;
  Introduction own = {.host = host_identity(), .pid = getpid(), .descriptor = segment ? segment->descriptor() : -1};
  std::vector<Introduction> all;
  for (const auto& text : exchange(own.text())) all.push_back(Introduction::from(text));
  for (int peer = 0; peer < size; ++peer) {
    if (all[peer].host == all[0].host) continue;
    reason = text_of("ranks 0 and ", peer, " of the group are on different hosts");
    return nullptr;
  }
  if (!segment) segment = open_segment(all[0], size, reason);
  for (const auto& problem : exchange(reason)) {
    if (reason.empty()) reason = problem;
  }
  if (!reason.empty()) return nullptr;
  std::vector<int> pids;
  for (const auto& introduction : all) pids.push_back(introduction.pid);
  return std::make_shared<ShmGroup>(std::move(engine), std::make_shared<Exchange>(std::move(segment), rank, pids));
}

}  // namespace pardiff::comm
