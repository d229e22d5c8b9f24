#include "comm/backends/threads.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

namespace pardiff::comm {

/// Mailboxes between pairs of ranks: a message is put in without waiting and taken out in order.
class ThreadHub {
 public:
  using Address = std::tuple<std::string, int, int>;  // group, from, to

  void put(const Address& address, at::Tensor message) {
    const std::lock_guard lock(mutex_);
    boxes_[address].push_back(std::move(message));
    arrived_.notify_all();
  }

  at::Tensor take(const Address& address, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[address];
    const bool came = arrived_.wait_for(lock, timeout, [&] { return !box.empty() || !failure_.empty(); });
    check<CommError>(failure_.empty(), failure_);
    check<CommError>(came, "rank ", std::get<2>(address), " waited ", timeout.count(), " ms for rank ",
                     std::get<1>(address), " in group '", std::get<0>(address),
                     "'. It is late, or does something else.");
    auto message = std::move(box.front());
    box.pop_front();
    return message;
  }

  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = why;
    arrived_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Address, std::deque<at::Tensor>> boxes_;
  std::string failure_;
};

namespace {

class ThreadGroup : public GroupBackend {
 public:
  ThreadGroup(std::shared_ptr<ThreadHub> hub, std::string name, int rank, int size, std::chrono::milliseconds timeout)
      : GroupBackend(rank, size), hub_(std::move(hub)), name_(std::move(name)), timeout_(timeout) {}

  std::string transport() const override { return "threads"; }

  Pending all_to_all(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_counts,
                     const std::vector<int64_t>& input_counts) override {
    const auto inputs = input.view({-1}).split_with_sizes(input_counts);
    const auto outputs = output.view({-1}).split_with_sizes(output_counts);
    for (int peer = 0; peer < size(); ++peer) send(inputs[peer], peer);
    return Pending([this, outputs] {
      for (int peer = 0; peer < size(); ++peer) receive(outputs[peer], peer);
    });
  }

  Pending all_gather(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts) override {
    const auto outputs = output.view({-1}).split_with_sizes(counts);
    for (int peer = 0; peer < size(); ++peer) send(input.view({-1}), peer);
    return Pending([this, outputs] {
      for (int peer = 0; peer < size(); ++peer) receive(outputs[peer], peer);
    });
  }

  Pending all_reduce(const at::Tensor& tensor) override {
    for (int peer = 0; peer < size(); ++peer) send(tensor, peer);
    return Pending([this, tensor] { add_up(tensor); });
  }

  Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<int64_t>& counts) override {
    const auto inputs = input.view({-1}).split_with_sizes(counts);
    for (int peer = 0; peer < size(); ++peer) send(inputs[peer], peer);
    return Pending([this, output] { add_up(output.view({-1})); });
  }

  Pending broadcast(const at::Tensor& tensor, int root) override {
    if (rank() == root) {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != root) send(tensor, peer);
      }
      return {};
    }
    return Pending([this, tensor, root] { receive(tensor, root); });
  }

  Pending hop(const at::Tensor& sent, int to, const at::Tensor& received, int from) override {
    if (sent.numel() > 0) send(sent, to);
    if (received.numel() == 0) return {};
    return Pending([this, received, from] { receive(received, from); });
  }

  void barrier() override { all_reduce(at::zeros({1})).wait(); }

 private:
  // The copy is what a wire would do: the sender may overwrite its tensor at once.
  void send(const at::Tensor& tensor, int to) { hub_->put({name_, rank(), to}, tensor.clone()); }

  void receive(const at::Tensor& into, int from) {
    const auto message = hub_->take({name_, from, rank()}, timeout_);
    check<CommError>(message.numel() == into.numel() && message.scalar_type() == into.scalar_type(), "rank ", from,
                     " sent ", message.numel(), " ", message.scalar_type(), " where rank ", rank(), " expects ",
                     into.numel(), " ", into.scalar_type(), " in group '", name_, "'.");
    into.view(message.sizes()).copy_(message);
  }

  void add_up(const at::Tensor& into) {
    const auto part = at::empty_like(into);
    for (int peer = 0; peer < size(); ++peer) {
      receive(peer == 0 ? into : part, peer);
      if (peer > 0) into.add_(part);
    }
  }

  std::shared_ptr<ThreadHub> hub_;
  std::string name_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

std::shared_ptr<ThreadHub> make_thread_hub() { return std::make_shared<ThreadHub>(); }
void fail_thread_hub(ThreadHub& hub, const std::string& why) { hub.fail(why); }

std::shared_ptr<GroupBackend> make_thread_group(std::shared_ptr<ThreadHub> hub, const std::string& name, int rank,
                                                int size, std::chrono::milliseconds timeout) {
  return std::make_shared<ThreadGroup>(std::move(hub), name, rank, size, timeout);
}

}  // namespace pardiff::comm
