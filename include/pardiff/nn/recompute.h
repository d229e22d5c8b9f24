#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace pardiff::nn {

/// A piece of a model: tensors in, tensors out, the same for the same inputs.
using Segment = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// What `segment` gives, with the activations inside it dropped: the backward pass runs the segment again from its
/// `inputs`, the only tensors that are kept. Values and gradients are bit-equal to those of a plain call, but for the
/// order in which the gradients of an input with several uses are added.
/// `parameters` are those that the segment uses and that are to have gradients; none may be changed in between.
/// Collective if the segment is: its collectives run in the forward pass and once more in the backward pass, before
/// those of its gradients, on every rank alike.
/// Throws: ConfigError in a backward pass under create_graph.
std::vector<at::Tensor> recomputed(const Segment& segment, const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& parameters);

}  // namespace pardiff::nn
