#include "comm/backends/threads.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace pardiff::comm {

/// What other ranks sent to one rank within one group. A message has a number within its pair of ranks, given when the
/// operation starts on either side, so that operations may be waited for in another order than they were started.
class Mailbox {
 public:
  using Address = std::pair<int, int64_t>;  // sender, number

  void put(const Address& address, at::Tensor message) {
    const std::lock_guard lock(mutex_);
    messages_[address] = std::move(message);
    changed_.notify_all();
  }

  /// No value: nothing came in time. Throws: CommError if a rank has failed.
  std::optional<at::Tensor> take(const Address& address, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    auto found = messages_.end();
    const bool came = changed_.wait_for(lock, timeout, [&] {
      found = messages_.find(address);
      return found != messages_.end() || !failure_.empty();
    });
    check<CommError>(failure_.empty(), failure_);
    if (!came) return std::nullopt;
    return std::move(messages_.extract(found).mapped());
  }

  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    failure_ = why;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Address, at::Tensor> messages_;
  std::string failure_;
};

class ThreadHub {
 public:
  std::shared_ptr<Mailbox> mailbox(const std::string& group, int rank) {
    const std::lock_guard lock(mutex_);
    auto& box = boxes_[{group, rank}];
    if (!box) box = std::make_shared<Mailbox>();
    if (!failure_.empty()) box->fail(failure_);
    return box;
  }

  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = why;
    for (const auto& [address, box] : boxes_) box->fail(why);
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::shared_ptr<Mailbox>> boxes_;
  std::string failure_;
};

namespace {

class ThreadGroup : public GroupBackend {
 public:
  ThreadGroup(ThreadHub& hub, std::string name, int rank, int size, std::chrono::milliseconds timeout)
      : GroupBackend(rank, size), name_(std::move(name)), timeout_(timeout), sent_(size, 0), expected_(size, 0) {
    for (int peer = 0; peer < size; ++peer) boxes_.push_back(hub.mailbox(name_, peer));
  }

  std::string transport() const override { return "threads"; }

  Pending all_to_all(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_counts,
                     const std::vector<int64_t>& input_counts) override {
    const auto inputs = input.view({-1}).split_with_sizes(input_counts);
    const auto outputs = output.view({-1}).split_with_sizes(output_counts);
    for (int peer = 0; peer < size(); ++peer) send(inputs[peer], peer);
    return Pending([this, outputs, messages = expect_from_all()] {
      for (int peer = 0; peer < size(); ++peer) receive(outputs[peer], messages[peer]);
    });
  }

  Pending all_gather(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts) override {
    const auto outputs = output.view({-1}).split_with_sizes(counts);
    for (int peer = 0; peer < size(); ++peer) send(input.view({-1}), peer);
    return Pending([this, outputs, messages = expect_from_all()] {
      for (int peer = 0; peer < size(); ++peer) receive(outputs[peer], messages[peer]);
    });
  }

  Pending all_reduce(const at::Tensor& tensor) override {
    for (int peer = 0; peer < size(); ++peer) send(tensor, peer);
    return Pending([this, tensor, messages = expect_from_all()] { add_up(tensor, messages); });
  }

  Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<int64_t>& counts) override {
    const auto inputs = input.view({-1}).split_with_sizes(counts);
    for (int peer = 0; peer < size(); ++peer) send(inputs[peer], peer);
    return Pending([this, output, messages = expect_from_all()] { add_up(output.view({-1}), messages); });
  }

  Pending broadcast(const at::Tensor& tensor, int root) override {
    if (rank() == root) {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != root) send(tensor, peer);
      }
      return {};
    }
    return Pending([this, tensor, message = expect_from(root)] { receive(tensor, message); });
  }

  Pending hop(const at::Tensor& sent, int to, const at::Tensor& received, int from) override {
    if (sent.numel() > 0) send(sent, to);
    if (received.numel() == 0) return {};
    return Pending([this, received, message = expect_from(from)] { receive(received, message); });
  }

  void barrier() override { all_reduce(at::zeros({1})).wait(); }

 private:
  // The copy is what a wire would do: the sender may overwrite its tensor at once.
  void send(const at::Tensor& tensor, int to) { boxes_[to]->put({rank(), sent_[to]++}, tensor.clone()); }

  Mailbox::Address expect_from(int from) { return {from, expected_[from]++}; }

  std::vector<Mailbox::Address> expect_from_all() {
    std::vector<Mailbox::Address> messages;
    for (int peer = 0; peer < size(); ++peer) messages.push_back(expect_from(peer));
    return messages;
  }

  void receive(const at::Tensor& into, const Mailbox::Address& address) {
    const auto arrived = boxes_[rank()]->take(address, timeout_);
    check<CommError>(arrived.has_value(), "rank ", rank(), " waited ", timeout_.count(), " ms for rank ", address.first,
                     " in group '", name_, "'. It is late, or does something else.");
    const auto& message = *arrived;
    check<CommError>(message.numel() == into.numel() && message.scalar_type() == into.scalar_type(), "rank ",
                     address.first, " sent ", message.numel(), " ", message.scalar_type(), " where rank ", rank(),
                     " expects ", into.numel(), " ", into.scalar_type(), " in group '", name_, "'.");
    into.view(message.sizes()).copy_(message);
  }

  void add_up(const at::Tensor& into, const std::vector<Mailbox::Address>& messages) {
    const auto part = at::empty_like(into);
    for (int peer = 0; peer < size(); ++peer) {
      receive(peer == 0 ? into : part, messages[peer]);
      if (peer > 0) into.add_(part);
    }
  }

  std::string name_;
  std::chrono::milliseconds timeout_;
  std::vector<std::shared_ptr<Mailbox>> boxes_;  // [peer]
  std::vector<int64_t> sent_, expected_;         // [peer] -> messages so far
};

}  // namespace

std::shared_ptr<ThreadHub> make_thread_hub() { return std::make_shared<ThreadHub>(); }
void fail_thread_hub(ThreadHub& hub, const std::string& why) { hub.fail(why); }

std::shared_ptr<GroupBackend> make_thread_group(std::shared_ptr<ThreadHub> hub, const std::string& name, int rank,
                                                int size, std::chrono::milliseconds timeout) {
  return std::make_shared<ThreadGroup>(*hub, name, rank, size, timeout);
}

}  // namespace pardiff::comm
