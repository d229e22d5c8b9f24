#pragma once
#include <pardiff/io/checkpoint.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pardiff {

/// What stands for a parameter of FluxTransformer2DModel in a checkpoint of the original layout.
struct OriginalTensor {
  std::string name;
  /// Its rows, along dimension 0, in this order; none: all as they are.
  std::vector<std::pair<int64_t, int64_t>> rows{};
};

/// Whether a checkpoint has FLUX's transformer under the names of its first publication ("double_blocks.0...").
bool is_original_flux(const Checkpoint& checkpoint);

/// Every tensor of such a checkpoint by the name of the parameter that it becomes: packed matrices (qkv, linear1) are
/// several, and the last modulation has its halves in the other order. Tensors of other names keep them.
/// Throws: CheckpointError for a packed tensor with too few rows.
std::map<std::string, OriginalTensor> tensors_of_original_flux(const Checkpoint& checkpoint);

}  // namespace pardiff
