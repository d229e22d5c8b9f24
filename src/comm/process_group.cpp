#include <ATen/ATen.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/core/check.h>
#include <pardiff/core/trace.h>

#include <numeric>

#include "comm/backends/backend.h"

namespace pardiff {
namespace {

void count(const ProcessGroup& group, const char* operation, int64_t bytes_sent) {
  if (group.counter()) group.counter()->add(operation, bytes_sent);
}

// Counts an operation, starts it, and records it if this thread is traced.
template <typename Start>
Pending run(const ProcessGroup& group, const char* operation, int64_t bytes_sent, Start start) {
  count(group, operation, bytes_sent);
  const int64_t begin = current_trace() ? Trace::now_ns() : 0;
  auto pending = start(group.backend());
  if (!current_trace()) return pending;
  current_trace()->add({"post", operation, begin, Trace::now_ns(), group.name(), 0});
  auto started = std::make_shared<Pending>(std::move(pending));
  return Pending([started, operation, bytes_sent, begin, name = group.name(), trace = current_trace()] {
    const int64_t wait = Trace::now_ns();
    started->wait();
    const int64_t end = Trace::now_ns();
    trace->add({"wait", operation, wait, end, name, 0});
    trace->add({"transfer", operation, begin, end, name, bytes_sent});
  });
}

int64_t sum_of(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

int64_t all_but(const std::vector<int64_t>& counts, int rank) { return sum_of(counts) - counts[rank]; }

void check_flat(const char* operation, const char* name, const at::Tensor& tensor, int64_t elements) {
  check<ShapeError>(tensor.is_contiguous() && tensor.numel() == elements, operation, ": ", name, " has shape ",
                    tensor.sizes(), ", and the counts say ", elements, " contiguous elements.");
}

void check_counts(const char* operation, const ProcessGroup& group, const std::vector<int64_t>& counts) {
  check<ShapeError>(static_cast<int>(counts.size()) == group.size(), operation, ": ", counts.size(),
                    " counts for a group of ", group.size(), ".");
}

void copy_flat(const at::Tensor& output, const at::Tensor& input) { output.view({-1}).copy_(input.reshape({-1})); }

}  // namespace

void CommunicationCounter::add(const std::string& operation, int64_t bytes_sent) {
  const std::lock_guard lock(mutex_);
  auto& entry = counts_[operation];
  entry.calls += 1;
  entry.bytes_sent += bytes_sent;
}

std::map<std::string, OperationCount> CommunicationCounter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::map<std::string, OperationCount> difference(const std::map<std::string, OperationCount>& later,
                                                 const std::map<std::string, OperationCount>& earlier) {
  std::map<std::string, OperationCount> between;
  for (const auto& [name, entry] : later) {
    const auto before = earlier.find(name);
    OperationCount apart = entry;
    if (before != earlier.end()) {
      apart.calls -= before->second.calls;
      apart.bytes_sent -= before->second.bytes_sent;
    }
    if (apart.calls > 0) between[name] = apart;
  }
  return between;
}

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    std::swap(finish_, other.finish_);
    Pending old(std::move(other));  // waits for what this handle held before
  }
  return *this;
}

Pending::~Pending() {
  try {
    wait();
  } catch (...) {  // whoever needed the result has been told by its own wait
  }
}

void Pending::wait() {
  if (auto finish = std::exchange(finish_, nullptr)) finish();
}

ProcessGroup::ProcessGroup(std::string name, std::shared_ptr<comm::GroupBackend> backend,
                           std::shared_ptr<CommunicationCounter> counter)
    : name_(std::move(name)), backend_(std::move(backend)), counter_(std::move(counter)) {}

int ProcessGroup::rank() const { return backend_ ? backend_->rank() : 0; }
int ProcessGroup::size() const { return backend_ ? backend_->size() : 1; }
std::string ProcessGroup::transport() const { return backend_ ? backend_->transport() : "none"; }

Pending all_to_all(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_counts,
                   const std::vector<int64_t>& input_counts, const ProcessGroup& group) {
  check_counts("all_to_all", group, output_counts);
  check_counts("all_to_all", group, input_counts);
  check_flat("all_to_all", "output", output, sum_of(output_counts));
  check_flat("all_to_all", "input", input, sum_of(input_counts));
  if (group.size() == 1) {
    copy_flat(output, input);
    return {};
  }
  return run(
      group, "all_to_all", all_but(input_counts, group.rank()) * input.element_size(),
      [&](comm::GroupBackend& backend) { return backend.all_to_all(output, input, output_counts, input_counts); });
}

Pending all_gather(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts,
                   const ProcessGroup& group) {
  check_counts("all_gather", group, counts);
  check_flat("all_gather", "output", output, sum_of(counts));
  check_flat("all_gather", "input", input, counts[group.rank()]);
  if (group.size() == 1) {
    copy_flat(output, input);
    return {};
  }
  return run(group, "all_gather", (group.size() - 1) * input.numel() * input.element_size(),
             [&](comm::GroupBackend& backend) { return backend.all_gather(output, input, counts); });
}

Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts,
                       const ProcessGroup& group) {
  check_counts("reduce_scatter", group, counts);
  check_flat("reduce_scatter", "output", output, counts[group.rank()]);
  check_flat("reduce_scatter", "input", input, sum_of(counts));
  if (group.size() == 1) {
    copy_flat(output, input);
    return {};
  }
  return run(group, "reduce_scatter", all_but(counts, group.rank()) * input.element_size(),
             [&](comm::GroupBackend& backend) { return backend.reduce_scatter(output, input, counts); });
}

Pending all_reduce(const at::Tensor& tensor, const ProcessGroup& group) {
  if (group.size() == 1) return {};
  check_flat("all_reduce", "tensor", tensor, tensor.numel());
  return run(group, "all_reduce", 2 * (group.size() - 1) * tensor.numel() * tensor.element_size() / group.size(),
             [&](comm::GroupBackend& backend) { return backend.all_reduce(tensor); });
}

Pending broadcast(const at::Tensor& tensor, int root, const ProcessGroup& group) {
  check<ShapeError>(root >= 0 && root < group.size(), "broadcast from rank ", root, " in a group of ", group.size());
  if (group.size() == 1) return {};
  check_flat("broadcast", "tensor", tensor, tensor.numel());
  const int64_t bytes = (group.size() - 1) * tensor.numel() * tensor.element_size();
  return run(group, "broadcast", group.rank() == root ? bytes : 0,
             [&](comm::GroupBackend& backend) { return backend.broadcast(tensor, root); });
}

Pending hop(const at::Tensor& sent, int to, const at::Tensor& received, int from, const ProcessGroup& group) {
  check<ShapeError>(sent.is_contiguous() && received.is_contiguous(), "hop: tensors must be contiguous");
  if (group.size() == 1) {
    copy_flat(received, sent);
    return {};
  }
  const auto start = [&](comm::GroupBackend& backend) { return backend.hop(sent, to, received, from); };
  if (sent.numel() == 0) return start(group.backend());  // a receive alone is the sender's to count and to record
  return run(group, "send", sent.numel() * sent.element_size(), start);
}

void barrier(const ProcessGroup& group) {
  if (group.size() == 1) return;
  count(group, "barrier", 0);
  group.backend().barrier();
}

}  // namespace pardiff
