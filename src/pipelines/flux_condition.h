#pragma once
#include <ATen/core/Tensor.h>

namespace pardiff::flux {

/// The text side of one pass of the transformer.
struct Condition {
  at::Tensor prompt_embeds{};  // [B, text tokens, dim]
  at::Tensor pooled{};         // [B, pooled_dim]

  bool given() const { return prompt_embeds.defined(); }
  Condition to(at::Device device, at::ScalarType dtype) const {
    return given() ? Condition{prompt_embeds.to(device, dtype), pooled.to(device, dtype)} : Condition();
  }
};

}  // namespace pardiff::flux
