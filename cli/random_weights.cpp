#include "cli/random_weights.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <string>

namespace pardiff::cli {
namespace {

// FNV-1a.
uint64_t hash_of(const std::string& text, uint64_t seed) {
  uint64_t hash = 14695981039346656037u ^ (seed * 0x9E3779B97F4A7C15u);
  for (const unsigned char byte : text) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

struct Distribution {
  double mean, deviation;
};

Distribution distribution_of(const std::string& name, const std::vector<int64_t>& shape) {
  const bool is_bias = name.ends_with("bias");
  if (shape.size() == 1) return is_bias ? Distribution{0, 0.02} : Distribution{1, 0.1};  // otherwise a norm's weight
  double fan_in = 1;
  for (size_t dim = 1; dim < shape.size(); ++dim) fan_in *= static_cast<double>(shape[dim]);
  if (name.find("relative_attention_bias") != std::string::npos) return {0, 0.5};
  if (name.find("embedding.weight") != std::string::npos || name == "shared.weight") return {0, 0.5};
  // T5 does not scale its scores: its queries are small instead.
  if (name.ends_with("SelfAttention.q.weight")) return {0, std::pow(fan_in * 64, -0.5)};
  return {0, std::pow(fan_in, -0.5)};
}

at::Tensor random_tensor(const std::string& name, const std::vector<int64_t>& shape, at::ScalarType dtype,
                         int64_t seed) {
  auto generator = at::detail::createCPUGenerator(hash_of(name, static_cast<uint64_t>(seed)));
  const auto [mean, deviation] = distribution_of(name, shape);
  const double half_width = std::sqrt(3.0) * deviation;  // of a uniform distribution, which is the fastest to draw
  return at::empty(shape).uniform_(mean - half_width, mean + half_width, generator).to(dtype);
}

}  // namespace

std::vector<DeferredTensor> random_weights(const Model& model, int64_t seed) {
  std::vector<DeferredTensor> tensors;
  for (const auto& parameter : model.named_parameters()) {
    const auto name = model.class_name() + "/" + parameter.key();
    const auto shape = parameter.value().sizes().vec();
    const auto dtype = parameter.value().scalar_type();
    tensors.push_back({parameter.key(), dtype, shape, [=] { return random_tensor(name, shape, dtype, seed); }});
  }
  return tensors;
}

}  // namespace pardiff::cli
