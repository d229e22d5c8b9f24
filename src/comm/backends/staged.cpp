#include "comm/backends/staged.h"

#include <ATen/ATen.h>

namespace pardiff::comm {
namespace {

using Counts = std::vector<int64_t>;

// A copy also where the tensor is in host memory already: what waits to be sent must not change with it.
at::Tensor to_host(const at::Tensor& tensor) { return tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true); }

at::Tensor room_on_host(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
}

class StagedGroup : public GroupBackend {
 public:
  explicit StagedGroup(std::shared_ptr<GroupBackend> host)
      : GroupBackend(host->rank(), host->size()), host_(std::move(host)) {}

  std::string transport() const override { return host_->transport(); }

  Pending all_to_all(const at::Tensor& output, const at::Tensor& input, const Counts& output_counts,
                     const Counts& input_counts) override {
    const auto room = room_on_host(output);
    return back_to(output, room, host_->all_to_all(room, to_host(input), output_counts, input_counts));
  }

  Pending all_gather(const at::Tensor& output, const at::Tensor& input, const Counts& counts) override {
    const auto room = room_on_host(output);
    return back_to(output, room, host_->all_gather(room, to_host(input), counts));
  }

  Pending all_reduce(const at::Tensor& tensor) override {
    const auto copy = to_host(tensor);
    return back_to(tensor, copy, host_->all_reduce(copy));
  }

  Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Counts& counts) override {
    const auto room = room_on_host(output);
    return back_to(output, room, host_->reduce_scatter(room, to_host(input), counts));
  }

  Pending broadcast(const at::Tensor& tensor, int root) override {
    const auto copy = to_host(tensor);
    return back_to(tensor, copy, host_->broadcast(copy, root));
  }

  Pending hop(const at::Tensor& sent, int to, const at::Tensor& received, int from) override {
    const auto room = room_on_host(received);
    return back_to(received, room, host_->hop(to_host(sent), to, room, from));
  }

  void barrier() override { host_->barrier(); }

 private:
  static Pending back_to(const at::Tensor& tensor, const at::Tensor& copy, Pending pending) {
    const auto held = std::make_shared<Pending>(std::move(pending));
    return Pending([tensor, copy, held] {
      held->wait();
      tensor.copy_(copy);
    });
  }

  std::shared_ptr<GroupBackend> host_;
};

}  // namespace

std::shared_ptr<GroupBackend> stage_through_host(std::shared_ptr<GroupBackend> host) {
  return std::make_shared<StagedGroup>(std::move(host));
}

}  // namespace pardiff::comm
