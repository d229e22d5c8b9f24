#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/attention/mode.h>
#include <pardiff/parallel/layout.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace pardiff {

class AttentionBackend;

/// A caller's own work, to run while an attention's messages are on their way. It needs nothing of that attention, and
/// is the same on every rank.
struct Meanwhile {
  std::function<void()> on_exchange;  // as query, key and value travel
  std::function<void()> on_return;    // as the result travels back, a message of a third of the size
};

struct AttentionOptions {
  /// How query, and key and value, are shared among the ranks; empty: every rank holds the whole tensor.
  SequenceLayout query_layout{};
  SequenceLayout key_layout{};
  /// Boolean (true: may be seen) or additive, of the whole sequence, the same on every rank: [B, Skv], [Sq, Skv] is not
  /// accepted, [B, 1, Sq, Skv], [B, H, Sq, Skv], any of B, H, Sq may be 1. Positions are global.
  at::Tensor mask{};
  /// A query at global position i sees keys at positions <= i.
  bool is_causal = false;
  /// Unset: head_dim^-0.5.
  std::optional<double> scale{};
  /// Each is run exactly once before forward returns. Only where no gradient is recorded: what they do is not part of
  /// this attention's graph.
  Meanwhile meanwhile{};
};

/// Scaled dot-product attention without parameters, shared among ranks once a plan is applied to its model.
class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl();

  /// Collective: every rank of the context group, once the model is parallel.
  /// Shapes: query [B, Sq_local, H, D], key and value [B, Skv_local, Hkv, D], H a multiple of Hkv; returns query's
  /// shape. Precision: see ContextParallelConfig::convert_to_fp32. A row without any key gives zeros. Throws:
  /// ShapeError, ConfigError.
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionOptions& options = {});

  /// Shares this attention from now on; nullptr: alone again.
  void share(std::shared_ptr<const AttentionSharing> sharing) { sharing_ = std::move(sharing); }
  const std::shared_ptr<const AttentionSharing>& sharing() const { return sharing_; }
  /// Whether a forward without gradients exchanges heads for tokens, so that Meanwhile hides something.
  bool exchanges_heads() const;
  /// Throws: ConfigError for a name that is not in the registry (the message lists it).
  void set_backend(const std::string& name);
  std::string backend() const;

 private:
  std::shared_ptr<const AttentionSharing> sharing_;
  const AttentionBackend* backend_;  // a row of the registry
};
TORCH_MODULE(Attention);

}  // namespace pardiff
