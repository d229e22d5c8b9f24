#pragma once
#include <pardiff/io/safetensors.h>
#include <pardiff/models/model.h>

#include <cstdint>
#include <vector>

namespace pardiff::cli {

/// Random weights for every parameter of a model without memory, scaled so that activations stay finite and of the
/// order of 1. A tensor depends on the seed and its name only, so that each can be made when it is written.
std::vector<DeferredTensor> random_weights(const Model& model, int64_t seed);

}  // namespace pardiff::cli
