#pragma once
#include <pardiff/parallel/plan.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pardiff {

/// The stretches [begin, end) along a dimension of `size` that `rank` of `ranks` holds, in order: one, or one per
/// packed block. Throws: ConfigError, naming `what`, if a block does not divide.
std::vector<std::pair<int64_t, int64_t>> shard_ranges(const std::string& what, const TensorParallelStyle& style,
                                                      int64_t size, int ranks, int rank);

}  // namespace pardiff
