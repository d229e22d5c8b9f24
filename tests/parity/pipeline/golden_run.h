#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/io/safetensors.h>
#include <pardiff/pipelines/flux_inputs.h>

#include <map>
#include <string>

namespace pardiff::testing {

/// tests/data/golden/<name>.safetensors, a whole run of models/flux-shapes in the reference, with the arguments that
/// manifest.json keeps.
class GoldenRun {
 public:
  explicit GoldenRun(const std::string& name);

  const FluxPipelineInputs& inputs() const { return inputs_; }
  at::Tensor image() const { return file_.tensor("image"); }
  at::Tensor latents(int64_t step) const { return file_.tensor("latents." + std::to_string(step)); }
  /// What the transformer was given in the first step.
  std::map<std::string, at::Tensor> transformer_inputs() const;

 private:
  SafetensorsFile file_;
  FluxPipelineInputs inputs_;
};

}  // namespace pardiff::testing
