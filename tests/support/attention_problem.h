#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/attention/attention.h>
#include <pardiff/comm/world.h>

#include <algorithm>
#include <string>
#include <vector>

namespace pardiff::testing {

enum class MaskKind { kNone, kKeyPadding, kAdditive, kBoolean, kCausal };

/// One attention over the joint sequence [text, image].
struct AttentionProblem {
  int64_t image = 4, text = 0;
  int64_t heads = 4, key_heads = 4;
  int64_t batch = 1;
  MaskKind mask = MaskKind::kNone;
  at::ScalarType dtype = at::kDouble;
  int64_t head_dim = 8;
  uint64_t seed = 1;

  std::string to_string() const;
};

/// Its inputs, and what one rank must answer according to the float64 yardstick.
struct SolvedProblem {
  AttentionProblem problem;
  at::Tensor query, key, value, mask;  // whole
  at::Tensor weight;                   // the loss is sum(weight * out)
  at::Tensor out, grad_query, grad_key, grad_value;
};
SolvedProblem solve(const AttentionProblem& problem);

/// One way to share an attention: a row of the registry over one layout.
struct AttentionWay {
  const AttentionMode* mode = nullptr;
  int ring = 1, ulysses = 1;
  bool rotate = true;
  std::string backend = "native";
  bool convert_to_fp32 = true;
  at::DeviceType device = at::kCPU;
  bool backward = true;

  int ranks() const { return ring * ulysses; }
  std::string to_string() const;
  /// Whether the mode's requirements hold, worked out here from its row, and the backend can compute it.
  bool accepts(const AttentionProblem& problem) const;
};
/// Every row of the registry over every ring x ulysses layout of `ranks`, both rotate methods, every backend that runs
/// on `device`.
std::vector<AttentionWay> attention_ways(int ranks, at::DeviceType device = at::kCPU);

std::shared_ptr<AttentionSharing> share_attention(World& world, const AttentionWay& way);

/// [begin, end) of rank `rank` when the first `count` mod `ranks` ranks get one more.
std::pair<int64_t, int64_t> share_of(int64_t count, int ranks, int rank);
/// This rank's tokens of a whole joint tensor [B, text + image, ...].
at::Tensor joint_share(const at::Tensor& whole, const AttentionProblem& problem, int ranks, int rank);
SequenceLayout joint_layout(const AttentionProblem& problem, int ranks);

/// This rank's part of an answer, in host memory; the gradients are undefined after a forward pass alone.
struct AttentionAnswer {
  at::Tensor out, grad_query, grad_key, grad_value;
};
/// Runs forward, and backward if `way` says so, on the device of `world`. Collective.
AttentionAnswer answer(const SolvedProblem& solved, const AttentionWay& way, World& world);
/// Errors against the yardstick, relative to the largest value of the whole expected tensor, or to a tenth of that of
/// all gradients: where a query sees one key, dQ and dK are zero in exact arithmetic and differences of large numbers
/// here.
struct AttentionErrors {
  double out = 0, gradients = 0;
  double largest() const { return std::max(out, gradients); }
};
/// Runs it and compares this rank's part. Collective.
AttentionErrors attention_errors(const SolvedProblem& solved, const AttentionWay& way, World& world);

/// 1e-12 for float64, 1e-5 for float32; half precision rounds probabilities, so 3e-2 and 4e-3 (bfloat16, float16).
double tolerance_of(at::ScalarType dtype);

}  // namespace pardiff::testing
