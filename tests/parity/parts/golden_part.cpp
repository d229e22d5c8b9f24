#include "parity/parts/golden_part.h"

#include <ATen/ATen.h>
#include <pardiff/nn/linear.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <sstream>

#include "support/golden.h"

namespace pardiff::testing {
namespace {

constexpr std::string_view kWeight = "weight.";

::testing::AssertionResult within(const char* what, double error, double tolerance) {
  if (error <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << what << " is off by " << error << ", " << error / tolerance
                                       << " times the tolerance " << tolerance;
}

}  // namespace

GoldenPart::GoldenPart(const std::string& name)
    : config_(ConfigFile::open(data_path(name + ".json"))),
      file_(SafetensorsFile::open(data_path(name + ".safetensors"))) {}

ParameterSource GoldenPart::weights(const Rename& rename) const {
  std::map<std::string, std::string> stored;  // the checkpoint's name -> the file's
  for (const auto& info : file_.tensors()) {
    if (!info.name.starts_with(kWeight)) continue;
    const auto name = info.name.substr(kWeight.size());
    for (const auto& alias : rename ? rename(name) : std::vector<std::string>{name}) stored[alias] = info.name;
  }
  ParameterSource source{.origin = file_.path().string(), .names = {}, .shape = {}, .tensor = {}};
  for (const auto& [name, inside] : stored) source.names.push_back(name);
  source.shape = [file = file_, stored](const std::string& name) { return file.info(stored.at(name)).shape; };
  source.tensor = [file = file_, stored](const std::string& name, const std::optional<TensorSlice>& slice) {
    if (slice) throw std::logic_error("the parts are loaded whole");
    return file.tensor(stored.at(name));
  };
  return source;
}

::testing::AssertionResult is_close(const char* what, const at::Tensor& actual, const at::Tensor& expected,
                                    double tolerance) {
  return within(what, absolute_error(actual, expected), tolerance);
}

::testing::AssertionResult is_close_in_norm(const char* what, const at::Tensor& actual, const at::Tensor& expected,
                                            double tolerance) {
  return within(what, norm_relative_error(actual, expected), tolerance);
}

::testing::AssertionResult gradients_are_slopes(torch::nn::Module& module, const std::function<at::Tensor()>& loss) {
  constexpr double kStep = 1e-6, kTolerance = 1e-6;
  module.zero_grad();
  const auto value = loss();
  value.backward();
  const double scale = std::abs(value.item<double>());
  std::string worst;
  double worst_error = 0;
  for (const auto& item : module.named_parameters()) {
    auto parameter = item.value();
    if (!parameter.grad().defined()) return ::testing::AssertionFailure() << item.key() << " got no gradient";
    at::NoGradGuard no_grad;
    const auto direction = at::randn_like(parameter);
    const auto kept = parameter.clone();
    parameter.copy_(kept + kStep * direction);
    const double above = loss().item<double>();
    parameter.copy_(kept - kStep * direction);
    const double below = loss().item<double>();
    parameter.copy_(kept);
    const double slope = (above - below) / (2 * kStep), gradient = (parameter.grad() * direction).sum().item<double>();
    const double error = std::abs(slope - gradient) / std::max({scale, std::abs(slope), std::abs(gradient)});
    if (error < worst_error) continue;
    worst_error = error;
    worst = item.key();
  }
  return within((worst + "'s gradient").c_str(), worst_error, kTolerance);
}

::testing::AssertionResult plan_covers_all_linears(const Model& model) {
  std::map<std::string, int> matches;  // key -> Linears
  const auto plan = model.tensor_parallel_plan();
  for (const auto& item : model.named_modules()) {
    if (!dynamic_cast<const nn::LinearImpl*>(item.value().get())) continue;
    const auto key = std::regex_replace(item.key(), std::regex("\\.(layers|block)\\.[0-9]+\\."), ".$1.*.");
    if (!plan.contains(key)) return ::testing::AssertionFailure() << item.key() << " is not in the plan";
    ++matches[key];
  }
  for (const auto& [key, style] : plan) {
    if (!matches.contains(key)) return ::testing::AssertionFailure() << key << " names no Linear";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace pardiff::testing
