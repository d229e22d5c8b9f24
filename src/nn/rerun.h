#pragma once
#include <pardiff/nn/recompute.h>

#include <vector>

// For autograd nodes that run a segment in forward and once more in backward.
namespace pardiff::nn {

/// What `segment` gives for `inputs`, rounded as in a plain call that records gradients; nothing recorded outlives
/// this.
std::vector<at::Tensor> run_without_history(const Segment& segment, const std::vector<at::Tensor>& inputs);

/// Runs `segment` on `inputs`, whose outputs have `gradients` (undefined where they have none), and returns the
/// gradients of `wanted`, which are inputs or parameters; undefined where there is none.
std::vector<at::Tensor> rerun_for_gradients(const Segment& segment, const std::vector<at::Tensor>& inputs,
                                            const std::vector<at::Tensor>& wanted,
                                            const std::vector<at::Tensor>& gradients);

}  // namespace pardiff::nn
