#pragma once
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <pardiff/io/config_file.h>
#include <pardiff/io/safetensors.h>
#include <pardiff/models/load.h>
#include <pardiff/models/model.h>
#include <pardiff/nn/parameter.h>

#include <functional>
#include <optional>
#include <string>

namespace pardiff::testing {

/// tests/data/<name>.json and .safetensors: a model's configuration, its weights, and what the reference computes.
class GoldenPart {
 public:
  explicit GoldenPart(const std::string& name);

  const ConfigFile& config() const { return config_; }
  at::Tensor operator[](const std::string& name) const { return file_.tensor(name); }

  using Rename = std::function<std::vector<std::string>(const std::string& name)>;
  /// The weights as a checkpoint would hold them, under all names that `rename` gives (none: left out).
  ParameterSource weights(const Rename& rename = {}) const;

  /// A model as a pipeline makes it: without memory, then filled.
  template <typename Holder, typename Config, typename... More>
  Holder load(const Config& config, std::optional<at::ScalarType> dtype = {}, const Rename& rename = {},
              const More&... more) const {
    nn::ParameterOptions parameters{.allocate = false};
    if (dtype) parameters.dtype = *dtype;
    Holder model(config, parameters, more...);
    load_parameters(*model, weights(rename), model->load_options(dtype));
    return model;
  }

 private:
  ConfigFile config_;
  SafetensorsFile file_;
};

/// For EXPECT_TRUE; says how much of the tolerance is used.
::testing::AssertionResult is_close(const char* what, const at::Tensor& actual, const at::Tensor& expected,
                                    double tolerance);
::testing::AssertionResult is_close_in_norm(const char* what, const at::Tensor& actual, const at::Tensor& expected,
                                            double tolerance);

/// Holds every parameter's gradient of `loss` to the slope of the loss in a random direction. `module` is float64.
::testing::AssertionResult gradients_are_slopes(torch::nn::Module& module, const std::function<at::Tensor()>& loss);

/// Every key of the plan names Linears, and every Linear is in the plan.
::testing::AssertionResult plan_covers_all_linears(const Model& model);

}  // namespace pardiff::testing
