#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace pardiff::nn {

// Each takes over its argument's memory when no gradient is recorded: pass the fresh result of a layer, by move.
// Qualify the calls (nn::silu): at::silu is found by argument-dependent lookup.

/// x sigmoid(x)
at::Tensor silu(at::Tensor x);
/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
at::Tensor gelu_tanh(at::Tensor x);
/// x sigmoid(1.702 x)
at::Tensor quick_gelu(at::Tensor x);
/// gelu_tanh with every operation rounded to x's dtype, as the T5 reference writes it out; the same as gelu_tanh in
/// float32 and float64.
at::Tensor gelu_new(at::Tensor x);

/// cat(attention, gelu_tanh(mlp)) along the last dimension, without a pass of its own when no gradient is recorded.
/// Shapes: attention [..., A], mlp [..., M]; returns [..., A + M].
at::Tensor beside_gelu_tanh(const at::Tensor& attention, const at::Tensor& mlp);
/// The same without the attention, for which it leaves `room` uninitialised columns, and with the MLP's columns in
/// parts. Without gradients. Shapes: mlp [..., M_i]; returns [..., room + sum(M_i)].
at::Tensor gelu_tanh_beside_room(int64_t room, const std::vector<at::Tensor>& mlp);

}  // namespace pardiff::nn
