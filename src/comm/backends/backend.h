#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/core/error.h>

#include <string>
#include <vector>

namespace pardiff::comm {

/// Another rank is gone. Whoever knows why, that rank or the watch over all, is to speak before this one.
class LostPeer : public CommError {
 public:
  using CommError::CommError;
};

/// One transport among the ranks of one group. Arguments have been checked and counted; the group has at least two
/// ranks.
class GroupBackend {
 public:
  GroupBackend(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~GroupBackend() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }

  virtual std::string transport() const = 0;
  virtual Pending all_to_all(const at::Tensor& output, const at::Tensor& input,
                             const std::vector<int64_t>& output_counts, const std::vector<int64_t>& input_counts) = 0;
  virtual Pending all_gather(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts) = 0;
  virtual Pending all_reduce(const at::Tensor& tensor) = 0;
  virtual Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                 const std::vector<int64_t>& counts) = 0;
  virtual Pending broadcast(const at::Tensor& tensor, int root) = 0;
  virtual Pending hop(const at::Tensor& sent, int to, const at::Tensor& received, int from) = 0;
  virtual void barrier() = 0;

 private:
  int rank_, size_;
};

}  // namespace pardiff::comm
