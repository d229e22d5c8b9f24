#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pardiff::comm {

class Liveness;
class SharedMemory;

/// Blocks of memory that the processes of one host have together. Whoever needs a block first fills it, without asking
/// the others; whoever needs it later maps the same pages. A block's memory is given back when nobody has it any more.
class HostMemory {
 public:
  /// One open block of this process: pages shared with all who have it, until this process writes to one, which is then
  /// its own. Destroying it lets go of the block. Lives as long as it likes.
  class Block;

  enum class Claim {
    kMine,   // nobody has filled it: `fill` or `abandon` it soon, since others may wait
    kTaken,  // another is filling it
    kReady,  // `block` has it
  };
  struct Claimed {
    Claim claim;
    std::shared_ptr<Block> block;  // if it is ready
  };

  /// Blocks of these sizes, none of them 0. Nothing is there yet. `liveness` ends waits; null: none does.
  /// Throws: CommError with the system's reason.
  static std::shared_ptr<HostMemory> create(const std::vector<size_t>& block_bytes, std::shared_ptr<Liveness> liveness);
  /// What another process of this host has created for the same blocks, at `address`. Throws: CommError.
  static std::shared_ptr<HostMemory> open(const std::string& address, const std::vector<size_t>& block_bytes,
                                          std::shared_ptr<Liveness> liveness);
  ~HostMemory();

  /// For `open` of the others, as long as this process has it.
  std::string address() const;

  Claimed claim(size_t block);
  /// Of a block that is mine: copies its bytes from `bytes` and hands it out. Throws: CommError when there is no
  /// memory.
  std::shared_ptr<Block> fill(size_t block, const void* bytes);
  void abandon(size_t block);
  /// Sleeps while another fills the block. Throws: LostPeer if a rank is lost meanwhile.
  void wait(size_t block) const;

 private:
  struct Files;
  HostMemory(std::shared_ptr<Files> files, std::shared_ptr<Liveness> liveness);

  std::shared_ptr<Files> files_;
  std::shared_ptr<Liveness> liveness_;
};

class HostMemory::Block {
 public:
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* bytes() const { return bytes_; }

 private:
  friend class HostMemory;
  Block(std::shared_ptr<Files> files, size_t index);

  std::shared_ptr<Files> files_;
  size_t index_;
  void* bytes_ = nullptr;
};

}  // namespace pardiff::comm
