#include <pardiff/core/check.h>
#include <pardiff/parallel/shard.h>

#include <numeric>

namespace pardiff {
namespace {

// Proportional blocks as sizes.
std::vector<int64_t> block_sizes(const std::string& what, const TensorParallelStyle& style, int64_t size) {
  if (!style.is_packed()) return {size};
  const auto& blocks = style.blocks();
  check<ConfigError>(!blocks.empty(), "'", what, "' is packed and its plan names no blocks. Give their proportions.");
  for (const auto block : blocks) {
    check<ConfigError>(block > 0, "'", what, "' has packed blocks ", joined(blocks), ". They must be positive.");
  }
  const int64_t sum = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  check<ConfigError>(size % sum == 0, "cannot split ", size, " of '", what, "' into blocks of proportion ",
                     joined(blocks), ": their sum ", sum, " does not divide it.");
  std::vector<int64_t> sizes;
  for (const auto block : blocks) sizes.push_back(block * (size / sum));
  return sizes;
}

}  // namespace

std::vector<std::pair<int64_t, int64_t>> shard_ranges(const std::string& what, const TensorParallelStyle& style,
                                                      int64_t size, int ranks, int rank) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t start = 0;
  for (const auto block : block_sizes(what, style, size)) {
    check<ConfigError>(block % ranks == 0, "cannot shard '", what, "' across ", ranks,
                       " tensor-parallel ranks: a block of size ", block, " along dimension ",
                       style.is_column() ? 0 : 1, " is not divisible by ", ranks, ". Use a tp_degree that divides it.");
    const int64_t share = block / ranks;
    ranges.emplace_back(start + rank * share, start + (rank + 1) * share);
    start += block;
  }
  return ranges;
}

}  // namespace pardiff
