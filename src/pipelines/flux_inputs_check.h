#pragma once
#include <pardiff/pipelines/flux_inputs.h>

#include <string>
#include <vector>

namespace pardiff::flux {

/// Throws UsageError for inputs that mean nothing for any model. Pure.
void check_arguments(const FluxPipelineInputs& inputs);

/// Prompts, or rows of prompt_embeds.
int64_t prompt_count(const FluxPipelineInputs& inputs);
int64_t picture_count(const FluxPipelineInputs& inputs);
/// True if the transformer runs twice a step.
bool uses_true_cfg(const FluxPipelineInputs& inputs);
/// Sigmas' number if they are given.
int64_t step_count(const FluxPipelineInputs& inputs);
/// `texts`, or `otherwise` if none are given; a single one `count` times.
std::vector<std::string> texts_for(const Prompts& texts, const Prompts& otherwise, int64_t count);

/// Everything that ranks must have in common, for comparison and for the message when they do not.
std::string description(const FluxPipelineInputs& inputs);

}  // namespace pardiff::flux
