#pragma once
#include <pardiff/comm/launch_env.h>
#include <pardiff/core/trace.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "comm/backends/backend.h"
#include "comm/backends/board.h"

namespace pardiff::comm {

/// A small store of texts, for the ranks that share no memory.
class TextStore {
 public:
  virtual ~TextStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits for the key.
  virtual std::string get(const std::string& key) = 0;
  virtual bool has(const std::string& key) = 0;
  virtual int64_t add(const std::string& key, int64_t value) = 0;
};
/// Opens a connection of one's own. Throws: CommError.
using ConnectToStore = std::function<std::unique_ptr<TextStore>()>;

/// Keeps watch over the ranks of a run, beside whatever this one does. A thread raises this rank's pulse on the board
/// and looks at the others: a rank that has ended, whose pulse stands still, or that waits in another operation than
/// its group, ends the run. How long an operation takes never does. The watch reports what it finds, once for all
/// ranks; this rank's waits then fail (`check_alive`), and where it cannot be interrupted, because it computes or waits
/// in a transport, the watch ends the process a little later.
class Liveness {
 public:
  /// `timeout`: how long a pulse may stand still, in seconds.
  Liveness(const LaunchEnv& env, std::shared_ptr<Board> board, std::chrono::seconds timeout, ConnectToStore connect);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  /// All ranks have come; `boards` are the addresses of theirs, in rank order. Between hosts the watch goes through the
  /// store from here on.
  void all_have_come(const std::vector<std::string>& boards);
  const Board& board() const;
  int rank() const;

  /// Throws: LostPeer when waiting has become pointless.
  void check_alive() const;
  /// What this rank waits for, for the others to read. `call`: the operation's number in its group, or -1.
  void begin_wait(const std::string& group, uint64_t group_hash, const char* operation, int64_t call);
  void end_wait();
  /// "in all_gather of group 'world', step 3".
  std::string words() const;

  /// This rank is done: its end means nothing. Returns when nobody needs it any longer, neither as the server of the
  /// rendezvous nor between hosts. Throws: LostPeer when another rank is lost meanwhile.
  void leave();

  /// Whether this rank is the one that reports a failure of the run. `is_consequence`: its error only says that another
  /// is gone, so it lets that one, or the watch, speak first. Returns false after the other has reported, or had time
  /// to.
  bool claim_report(bool is_consequence);
  /// Tells the others, and the launcher, that the claimed failure has been printed, and the exit code of the run.
  void confirm_report(int exit_code);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// While it lives, this rank waits in an operation. `liveness` may be null.
class Waiting {
 public:
  Waiting(Liveness* liveness, const std::string& group, uint64_t group_hash, const char* operation, int64_t call)
      : liveness_(liveness) {
    if (liveness_) liveness_->begin_wait(group, group_hash, operation, call);
  }
  ~Waiting() {
    if (liveness_) liveness_->end_wait();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Liveness* liveness_;
};

/// `group`, whose waits tell `liveness` what they wait for and fail when it does.
std::shared_ptr<GroupBackend> watched(std::shared_ptr<GroupBackend> group, const std::string& name,
                                      std::shared_ptr<Liveness> liveness);

/// Keys in the store.
inline constexpr const char* kFailedKey = "failed";      // how many ranks have failed
inline constexpr const char* kReportedKey = "reported";  // the exit code of the failure that has been printed

}  // namespace pardiff::comm
