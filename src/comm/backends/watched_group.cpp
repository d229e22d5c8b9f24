#include <pardiff/core/check.h>

#include <utility>

#include "comm/backends/liveness.h"

namespace pardiff::comm {
namespace {

class WatchedGroup : public GroupBackend {
 public:
  WatchedGroup(std::shared_ptr<GroupBackend> inner, std::string name, std::shared_ptr<Liveness> liveness)
      : GroupBackend(inner->rank(), inner->size()),
        inner_(std::move(inner)),
        name_(std::move(name)),
        hash_(std::hash<std::string>()(name_)),
        liveness_(std::move(liveness)) {}

  std::string transport() const override { return inner_->transport(); }

  Pending all_to_all(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_counts,
                     const std::vector<int64_t>& input_counts) override {
    return watch("all_to_all", [&] { return inner_->all_to_all(output, input, output_counts, input_counts); });
  }
  Pending all_gather(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts) override {
    return watch("all_gather", [&] { return inner_->all_gather(output, input, counts); });
  }
  Pending all_reduce(const at::Tensor& tensor) override {
    return watch("all_reduce", [&] { return inner_->all_reduce(tensor); });
  }
  Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<int64_t>& counts) override {
    return watch("reduce_scatter", [&] { return inner_->reduce_scatter(output, input, counts); });
  }
  Pending broadcast(const at::Tensor& tensor, int root) override {
    return watch("broadcast", [&] { return inner_->broadcast(tensor, root); });
  }
  Pending hop(const at::Tensor& sent, int to, const at::Tensor& received, int from) override {
    return watch("send", [&] { return inner_->hop(sent, to, received, from); });
  }
  void barrier() override {
    watch("barrier", [&] {
      inner_->barrier();
      return Pending();
    }).wait();
  }

 private:
  // Every rank of the group calls every operation, so all count alike.
  template <typename Start>
  Pending watch(const char* operation, const Start& start) {
    const int64_t call = calls_++;
    auto inner = std::make_shared<Pending>();
    guarded(operation, call, [&] { *inner = start(); });
    return Pending([this, operation, call, inner] { guarded(operation, call, [&] { inner->wait(); }); });
  }

  template <typename Action>
  void guarded(const char* operation, int64_t call, const Action& action) {
    const Waiting waiting(liveness_.get(), name_, hash_, operation, call);
    liveness_->check_alive();
    try {
      action();
    } catch (const LostPeer&) {
      throw;  // the watch says more about it
    } catch (const CommError& error) {
      fail<CommError>(error.what(), " Rank ", liveness_->rank(), " is ", liveness_->words(), ".");
    }
  }

  std::shared_ptr<GroupBackend> inner_;
  std::string name_;
  uint64_t hash_;
  std::shared_ptr<Liveness> liveness_;
  int64_t calls_ = 0;
};

}  // namespace

std::shared_ptr<GroupBackend> watched(std::shared_ptr<GroupBackend> group, const std::string& name,
                                      std::shared_ptr<Liveness> liveness) {
  return std::make_shared<WatchedGroup>(std::move(group), name, std::move(liveness));
}

}  // namespace pardiff::comm
