#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

namespace pardiff {

/// What a kernel is given. Query and key may have different lengths; none of the dimensions is 0.
struct KernelInputs {
  at::Tensor query;        // [B, Sq, H, D], innermost dimension contiguous
  at::Tensor key;          // [B, Skv, H, D]
  at::Tensor value;        // [B, Skv, H, D]
  at::Tensor mask;         // undefined, or additive [B|1, H|1, Sq|1, Skv] in query's dtype
  bool is_causal = false;  // only with Sq == Skv and no mask
  double scale = 1.0;
  /// The result is merged with others: where the kernel can, `out` comes in at least float32 instead of being rounded
  /// to query's dtype.
  bool is_part = false;
};

/// What a kernel returns.
struct KernelOutput {
  at::Tensor out;  // [B, Sq, H, D] in query's dtype (see is_part); a row without any key is zero
  /// [B, Sq, H], natural log, at least float32 (float64 for float64); -inf for a row without any key.
  at::Tensor lse;
};

struct KernelGradients {
  at::Tensor query, key, value;
};

/// What a use of attention asks of its kernels.
struct KernelNeeds {
  at::DeviceType device = at::kCPU;
  bool lse = false;
  bool mask = false;
  bool backward = false;
  std::optional<at::ScalarType> dtype{};  // unset: any that it has
  int64_t head_dim = 0;                   // 0: any that it has
};

/// One family of attention kernels.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  virtual std::string name() const = 0;
  /// One line for tables: what it is and where it runs.
  virtual std::string description() const = 0;
  /// Empty if it can do this, else why not.
  virtual std::string why_not(const KernelNeeds& needs) const = 0;

  virtual KernelOutput forward(const KernelInputs& inputs) const = 0;
  /// The result over `inputs.key` and over the keys that `seen` has the result of. `seen.out` is in the dtype to merge
  /// in and may be written to; `seen.lse` is float64. So are those returned.
  virtual KernelOutput forward_onto(KernelOutput seen, const KernelInputs& inputs) const;
  /// The gradient of the share that `inputs.key` has in a softmax whose final result over all keys is `final`. Rows
  /// without any key have a large positive LSE in `final`, which makes their probabilities zero.
  virtual KernelGradients backward(const at::Tensor& grad_out, const KernelInputs& inputs,
                                   const KernelOutput& final) const = 0;
};

/// Every backend of this build, also those that cannot run here (`why_not` says why).
const std::vector<const AttentionBackend*>& attention_backends();
/// Throws: ConfigError for an unknown name: it lists the known ones, and for a name of the reference the nearest one
/// here.
const AttentionBackend& attention_backend(const std::string& name);
/// Names of the backends that can do `needs`.
std::vector<std::string> backends_that_can(const KernelNeeds& needs);

}  // namespace pardiff
