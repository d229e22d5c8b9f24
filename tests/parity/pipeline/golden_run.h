#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/io/safetensors.h>
#include <pardiff/pipelines/flux_inputs.h>

#include <map>
#include <string>
#include <vector>

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

/// How far one rank's results in float32 move, at most, when every number of a case's noise moves to one of its
/// neighbours. Denoising with this checkpoint amplifies rounding, most in `square`, and how sums are rounded is the
/// processor's choice, and the number of rows': two float32 runs cannot be expected to be nearer than about this.
struct RoundingReach {
  double image = 0;
  std::vector<double> latents{};  // after each step
};
const RoundingReach& rounding_reach(const std::string& name);

/// What a picture in float32 may be away from another run's: 1e-5, or what rounding alone makes of it.
double picture_tolerance(const std::string& name);

}  // namespace pardiff::testing
