#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace pardiff {

namespace comm {
class GroupBackend;
}

/// What a rank sent under one operation's name.
struct OperationCount {
  int64_t calls = 0;
  int64_t bytes_sent = 0;  // payload to other ranks only
};

/// Calls and bytes of every operation of one rank, over all its groups. Safe to use from several threads.
class CommunicationCounter {
 public:
  void add(const std::string& operation, int64_t bytes_sent);
  std::map<std::string, OperationCount> counts() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, OperationCount> counts_;
};

/// later - earlier, operation by operation; operations that did not run in between are left out.
std::map<std::string, OperationCount> difference(const std::map<std::string, OperationCount>& later,
                                                 const std::map<std::string, OperationCount>& earlier);

/// An operation under way. Its tensors live until `wait` returned. Destroying it waits.
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  explicit Pending(std::function<void()> finish) : finish_(std::move(finish)) {}
  Pending(Pending&& other) noexcept : finish_(std::exchange(other.finish_, nullptr)) {}
  Pending& operator=(Pending&& other) noexcept;
  ~Pending();

  /// Blocks until the operation is done on this rank (on CUDA: until the current stream will see it done).
  /// Throws: CommError if another rank is gone or late.
  void wait();

 private:
  std::function<void()> finish_;
};

/// A value handle on some ranks that communicate. A group of one rank is the identity: every operation on it does
/// nothing that can be seen, so that the same code runs alone and on many ranks.
class ProcessGroup {
 public:
  /// A group of one.
  ProcessGroup() = default;
  ProcessGroup(std::string name, std::shared_ptr<comm::GroupBackend> backend,
               std::shared_ptr<CommunicationCounter> counter);

  int rank() const;  // within this group
  int size() const;
  const std::string& name() const { return name_; }
  /// The transport's name ("gloo", "nccl", "threads"), or "none" for a group of one.
  std::string transport() const;

  comm::GroupBackend& backend() const { return *backend_; }
  CommunicationCounter* counter() const { return counter_.get(); }

 private:
  std::string name_ = "self";
  std::shared_ptr<comm::GroupBackend> backend_;
  std::shared_ptr<CommunicationCounter> counter_;
};

// Every function below is collective: all ranks of `group` call it, in the same order. Tensors are contiguous and
// counts are elements. Each counts one call and the payload bytes sent to other ranks under its own name.

/// Sends the p-th stretch of `input` to rank p and receives rank p's stretch as the p-th of `output`.
/// Shapes: flat; sum(input_counts) and sum(output_counts) elements. Counts may be 0.
Pending all_to_all(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_counts,
                   const std::vector<int64_t>& input_counts, const ProcessGroup& group);
/// Concatenates every rank's `input` (counts[p] elements on rank p) in rank order.
Pending all_gather(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts,
                   const ProcessGroup& group);
/// Sums all ranks' `input` and leaves the stretch counts[rank] in `output`, added in rank order.
Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts,
                       const ProcessGroup& group);
/// Sums `tensor` over the ranks, in place; bit-equal on every rank.
Pending all_reduce(const at::Tensor& tensor, const ProcessGroup& group);
/// Copies rank `root`'s `tensor` to all ranks, in place.
Pending broadcast(const at::Tensor& tensor, int root, const ProcessGroup& group);
/// Sends one tensor to rank `to` while receiving another from rank `from`. Counted as `send`. An empty tensor is
/// neither sent nor counted; both ends know its size.
Pending hop(const at::Tensor& sent, int to, const at::Tensor& received, int from, const ProcessGroup& group);
/// Returns when every rank has called it.
void barrier(const ProcessGroup& group);

}  // namespace pardiff
