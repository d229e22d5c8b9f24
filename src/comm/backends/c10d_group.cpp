#include "comm/backends/c10d_group.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <torch/version.h>

#include <algorithm>

namespace pardiff::comm {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

// "[file.cc:12] What happened. Advice.\nBacktrace" -> "What happened"
std::string plain_reason(std::string text) {
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[') && text.find("] ") != std::string::npos) text.erase(0, text.find("] ") + 2);
  text = text.substr(0, text.find(". "));
  if (text.ends_with('.')) text.pop_back();
  return text;
}

class C10dGroup : public GroupBackend {
 public:
  C10dGroup(std::string transport, c10::intrusive_ptr<c10d::Backend> backend)
      : GroupBackend(backend->getRank(), backend->getSize()),
        transport_(std::move(transport)),
        backend_(std::move(backend)),
        sent_(size(), 0),
        expected_(size(), 0) {}

  std::string transport() const override { return transport_; }

  Pending all_to_all(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_counts,
                     const std::vector<int64_t>& input_counts) override {
    // The engine takes sizes along dimension 0 and refuses null data, which empty tensors have.
    auto flat_output = with_memory(output), flat_input = with_memory(input);
    auto output_sizes = output_counts, input_sizes = input_counts;
    return run("all_to_all", {flat_output, flat_input}, [&] {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
      return backend_->all_to_all_single(flat_output, flat_input, output_sizes, input_sizes);
#else
      return backend_->alltoall_base(flat_output, flat_input, output_sizes, input_sizes);
#endif
    });
  }

  Pending all_gather(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts) override {
    const bool even = std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
    if (even && counts[0] == 0) return {};
    if (!even) return uneven_all_gather(output, input, counts);
    auto flat_output = output.view({-1}), flat_input = input.view({-1});
    return run("all_gather", {flat_output, flat_input}, [&] {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
      return backend_->all_gather_single(flat_output, flat_input);
#else
      return backend_->_allgather_base(flat_output, flat_input);
#endif
    });
  }

  Pending all_reduce(const at::Tensor& tensor) override {
    if (tensor.numel() == 0) return {};
    std::vector<at::Tensor> tensors = {tensor};
    return run("all_reduce", tensors, [&] { return backend_->allreduce(tensors); });
  }

  Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<int64_t>& counts) override {
    const std::vector<int64_t> own(size(), counts[rank()]);
    const auto parts = at::empty({size(), counts[rank()]}, input.options());
    auto exchange = std::make_shared<Pending>(all_to_all(parts.view({-1}), input, own, counts));
    return Pending([this, output, parts, exchange] {
      exchange->wait();
      const auto flat = output.view({-1});
      flat.copy_(parts[0]);
      for (int peer = 1; peer < size(); ++peer) flat.add_(parts[peer]);
    });
  }

  Pending broadcast(const at::Tensor& tensor, int root) override {
    if (tensor.numel() == 0) return {};
    std::vector<at::Tensor> tensors = {tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return run("broadcast", tensors, [&] { return backend_->broadcast(tensors, options); });
  }

  Pending hop(const at::Tensor& sent, int to, const at::Tensor& received, int from) override {
    std::vector<std::pair<at::Tensor, int>> sends, receives;
    if (sent.numel() > 0) sends.emplace_back(sent, to);
    if (received.numel() > 0) receives.emplace_back(received, from);
    return exchange("send", sends, receives);
  }

  void barrier() override {
    run("barrier", {}, [&] { return backend_->barrier(); }).wait();
  }

 private:
  static at::Tensor with_memory(const at::Tensor& tensor) {
    return tensor.numel() > 0 ? tensor.view({-1}) : at::empty({1}, tensor.options()).narrow(0, 0, 0);
  }

  template <typename Start>
  Pending run(const char* operation, std::vector<at::Tensor> held, const Start& start) {
    Work work;
    try {
      work = start();
    } catch (const std::exception& error) {
      failed(operation, error);
    }
    return Pending([this, operation, work, held = std::move(held)] { finish(operation, work); });
  }

  void finish(const char* operation, const Work& work) {
    try {
      work->wait();
    } catch (const std::exception& error) {
      failed(operation, error);
    }
  }

  [[noreturn]] void failed(const char* operation, const std::exception& error) const {
    fail<LostPeer>("rank ", rank(), " of ", size(), " failed in ", operation, " over ", transport_, ": ",
                   plain_reason(error.what()), ". Another rank is gone or late.");
  }

  // Point-to-point transfers that start together. Tags count the transfers of each pair, because a rank that has
  // nothing to send or receive does not take part.
  Pending exchange(const char* operation, const std::vector<std::pair<at::Tensor, int>>& sends,
                   const std::vector<std::pair<at::Tensor, int>>& receives) {
    if (sends.empty() && receives.empty()) return {};
    std::vector<Work> works;
    std::vector<at::Tensor> held;
    const bool coalesce = backend_->supportsCoalescing();
    try {
      if (coalesce) backend_->startCoalescing();
      for (const auto& [tensor, from] : receives) {
        std::vector<at::Tensor> one = {tensor};
        works.push_back(backend_->recv(one, from, expected_[from]++));
        held.push_back(tensor);
      }
      for (const auto& [tensor, to] : sends) {
        std::vector<at::Tensor> one = {tensor};
        works.push_back(backend_->send(one, to, sent_[to]++));
        held.push_back(tensor);
      }
      if (coalesce) works = {backend_->endCoalescing()};
    } catch (const std::exception& error) {
      failed(operation, error);
    }
    return Pending([this, operation, works, held] {
      for (const auto& work : works) finish(operation, work);
    });
  }

  Pending uneven_all_gather(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts) {
    const auto parts = output.view({-1}).split_with_sizes(counts);
    parts[rank()].copy_(input.view({-1}));
    std::vector<std::pair<at::Tensor, int>> sends, receives;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      if (counts[rank()] > 0) sends.emplace_back(input.view({-1}), peer);
      if (counts[peer] > 0) receives.emplace_back(parts[peer], peer);
    }
    return exchange("all_gather", sends, receives);
  }

  std::string transport_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<int> sent_, expected_;  // [peer] -> transfers so far
};

}  // namespace

std::shared_ptr<GroupBackend> wrap_c10d(std::string transport, c10::intrusive_ptr<c10d::Backend> backend) {
  return std::make_shared<C10dGroup>(std::move(transport), std::move(backend));
}

}  // namespace pardiff::comm
