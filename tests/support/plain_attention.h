#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>

namespace pardiff::testing {

/// Normally distributed numbers that depend on `seed` alone.
at::Tensor random_normal(std::initializer_list<int64_t> shape, uint64_t seed, at::ScalarType dtype = at::kDouble);

/// Softmax attention written out in float64, differentiable by the engine: the yardstick of every mode and kernel.
/// Shapes: query [B, Sq, H, D], key and value [B, Skv, Hkv, D]; mask [B, Skv] or [B|1, H|1, Sq|1, Skv|1], boolean
/// (true: may be seen) or additive. A row without any key gives zeros.
at::Tensor plain_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const at::Tensor& mask = {}, bool is_causal = false, std::optional<double> scale = {});

/// The log-sum-exp of every row, [B, Sq, H] in float64; -inf for a row without any key.
at::Tensor plain_lse(const at::Tensor& query, const at::Tensor& key, const at::Tensor& mask = {},
                     bool is_causal = false, std::optional<double> scale = {});

}  // namespace pardiff::testing
