#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/backends/shm_segment.h"

namespace pardiff::comm {

/// What a rank does. Texts are cut to their room and end with a zero.
struct Doing {
  char operation[16] = {}, group[48] = {}, stage[16] = {}, block[32] = {};
  uint64_t group_hash = 0;  // of the whole name
  int64_t call = -1;        // the operation's number in its group; -1: it has none
  int64_t step = -1, block_index = -1;
  int64_t waits = 0;

  /// "in all_gather of group 'world', step 3, single_transformer_blocks.7".
  std::string words() const;
  /// Whether no order of events makes both right: the n-th operation of a group is one operation.
  bool contradicts(const Doing& other) const;
};

enum class Stage : uint32_t { absent, running, left, failing };

/// One rank's place on the board. Written by that rank alone (or by whoever copies it between hosts), read by all.
class Slot {
 public:
  /// A copy, for another host's board.
  struct Image {
    int64_t pid = 0, stage = 0, pulse = 0, version = 0;
    Doing doing;
  };

  std::atomic<int32_t> pid;
  std::atomic<Stage> stage;
  std::atomic<int64_t> pulse;
  std::atomic<uint32_t> is_local;  // the rank itself writes here

  void write(const Doing& doing);
  /// `is_whole` becomes false if the writer has stopped halfway.
  Image read(bool& is_whole) const;
  void write(const Image& image);

 private:
  static constexpr size_t kWords = sizeof(Doing) / sizeof(uint64_t);

  std::atomic<int64_t> version_;  // odd while being written
  std::atomic<uint64_t> words_[kWords];
};

/// What the ranks of a run know of each other, in memory that those of one host share. It answers also when the
/// rendezvous store is gone and about ranks that have ended.
class Board {
 public:
  /// A new one for `ranks` ranks (of the whole run). Throws: CommError when there is no memory.
  static std::shared_ptr<Board> create(int ranks);
  /// Another process's, from its `address`; null if it cannot be opened.
  static std::shared_ptr<Board> open(const std::string& address, int ranks);

  /// For `open` of the others; equal for all that share a board.
  const std::string& address() const { return address_; }
  int size() const { return ranks_; }
  Slot& slot(int rank) const;
  /// Whether all ranks of the run are on this host.
  bool is_complete() const;

  /// True for the first of this host that asks.
  bool claim_report() const;
  bool is_claimed() const;
  void confirm_report(int exit_code) const;
  /// Of the failure that has been printed, or 0.
  int reported_exit_code() const;

  // Set by whoever looks after the store between hosts.
  std::atomic<uint32_t>& failed_elsewhere() const;
  std::atomic<uint32_t>& store_is_gone() const;

 private:
  struct Head;

  Head& head() const;
  Board(std::unique_ptr<SharedMemory> memory, std::string address, int ranks);

  std::unique_ptr<SharedMemory> memory_;
  std::string address_;
  int ranks_;
};

}  // namespace pardiff::comm
