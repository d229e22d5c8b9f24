#pragma once
#include "attention/modes/call.h"

namespace pardiff::attention {

/// The part of a call's mask and causal rule that this rank's queries and heads meet in one block of keys.
class MaskView {
 public:
  MaskView(const Call& call, at::ScalarType dtype, at::Device device);

  /// False if no query of this rank may see any key of ring rank `block` (found from positions alone).
  bool sees(int block) const;
  /// True if the kernel's own causal flag says the same as `additive(block)`.
  bool is_plain_causal(int block) const;
  /// [B|1, H|1, Sq|1, Skv of the block], additive, or undefined if every key may be seen.
  at::Tensor additive(int block) const;

 private:
  at::Tensor positions(const std::vector<SequenceSpan>& spans) const;

  const Call& call_;
  at::ScalarType dtype_;
  at::Device device_;
  std::vector<SequenceSpan> queries_;
};

}  // namespace pardiff::attention
