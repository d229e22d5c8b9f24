#include <ATen/ATen.h>
#include <pardiff/core/check.h>

#include <limits>
#include <map>

#include "attention/backends/backends.h"

namespace pardiff {
namespace {

// Families of the reference's backends that are python packages or other hardware, and the one here that serves
// instead. A backend for which another one serves than for the rest of its family is there by its whole name.
const std::map<std::string, std::string>& nearest_here() {
  static const std::map<std::string, std::string> names = {
      {"flash", "_native_flash"},
      {"_flash_3", "_native_cudnn"},
      {"_flash_3_hub", "_native_cudnn"},
      {"_flash_varlen_3", "_native_cudnn"},
      {"_flash_3_varlen_hub", "_native_cudnn"},
      {"aiter", "_native_flash"},
      {"flex", "native"},
      {"xformers", "_native_efficient"},
      {"sage", "_native_cudnn"},
      {"_native_math", "math"},
      {"npu", "native"},
      {"xla", "native"},
      {"neuron", "native"},
  };
  return names;
}

// By its whole name, or by the family that its name begins with: "_native_npu", "sage_varlen_hub", "flash_5".
std::map<std::string, std::string>::const_iterator nearest_to(const std::string& name) {
  const auto& names = nearest_here();
  if (const auto found = names.find(name); found != names.end()) return found;
  auto family = name.substr(name.starts_with("_native_") ? 8 : name.starts_with("_") ? 1 : 0);
  family = family.substr(0, family.find('_'));
  return names.find(family);
}

}  // namespace

const std::vector<const AttentionBackend*>& attention_backends() {
  static const std::vector<const AttentionBackend*> rows = {&native_attention(), &math_attention(),
                                                            &native_flash_attention(), &native_efficient_attention(),
                                                            &native_cudnn_attention()};
  return rows;
}

const AttentionBackend& attention_backend(const std::string& name) {
  std::string lower = name;
  for (auto& letter : lower) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  std::vector<std::string> known;
  for (const auto* backend : attention_backends()) {
    if (backend->name() == lower) return *backend;
    known.push_back(backend->name());
  }
  const auto nearest = nearest_to(lower);
  if (nearest != nearest_here().end()) {
    fail<ConfigError>("attention backend '", name, "' is not available in C++. The nearest one here is '",
                      nearest->second, "'; there are: ", joined(known), ".");
  }
  fail<ConfigError>("unknown attention backend '", name, "'. Use one of: ", joined(known), ".");
}

std::vector<std::string> backends_that_can(const KernelNeeds& needs) {
  std::vector<std::string> names;
  for (const auto* backend : attention_backends()) {
    if (backend->why_not(needs).empty()) names.push_back(backend->name());
  }
  return names;
}

at::Tensor dead_rows(const at::Tensor& additive_mask) {
  return (additive_mask == -std::numeric_limits<double>::infinity()).all(-1);
}

void clear_dead_rows(KernelOutput& output, const at::Tensor& additive_mask) {
  const auto dead = dead_rows(additive_mask).transpose(1, 2);  // [B|1, H|1, Sq|1] -> [B|1, Sq|1, H|1]
  output.lse = output.lse.masked_fill(dead, -std::numeric_limits<double>::infinity());
  output.out = output.out.masked_fill(dead.unsqueeze(-1), 0);
}

}  // namespace pardiff
