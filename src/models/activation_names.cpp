#include "models/activation_names.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/nn/activation.h>

#include <array>
#include <utility>

namespace pardiff {
namespace {

at::Tensor relu(at::Tensor x) { return at::GradMode::is_enabled() ? at::relu(x) : at::relu_(x); }
at::Tensor gelu(at::Tensor x) { return at::GradMode::is_enabled() ? at::gelu(x) : at::gelu_(x); }

constexpr std::array<std::pair<const char*, Activation>, 6> kActivations = {{
    {"gelu", gelu},
    {"gelu_new", nn::gelu_new},
    {"gelu_pytorch_tanh", nn::gelu_tanh},
    {"quick_gelu", nn::quick_gelu},
    {"relu", relu},
    {"silu", nn::silu},
}};

}  // namespace

std::vector<std::string> activation_names() {
  std::vector<std::string> names;
  for (const auto& [name, function] : kActivations) names.emplace_back(name);
  return names;
}

Activation activation_named(const std::string& name) {
  for (const auto& [known, function] : kActivations) {
    if (name == known) return function;
  }
  fail<ConfigError>("there is no activation named \"", name, "\". Use one of: ", joined(activation_names()), ".");
}

}  // namespace pardiff
