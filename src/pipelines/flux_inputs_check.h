#pragma once
#include <pardiff/pipelines/flux_inputs.h>

namespace pardiff::flux {

/// Throws UsageError for inputs that mean nothing for any model.
void check_arguments(const FluxPipelineInputs& inputs);
int64_t picture_count(const FluxPipelineInputs& inputs);
/// True if the transformer runs twice a step.
bool uses_true_cfg(const FluxPipelineInputs& inputs);

}  // namespace pardiff::flux
