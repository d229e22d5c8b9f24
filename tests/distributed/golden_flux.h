#pragma once
#include <pardiff/models/flux_transformer.h>
#include <pardiff/parallel/config.h>

#include <string>
#include <vector>

#include "parity/parts/golden_part.h"

namespace pardiff::testing {

FluxTransformer2DModel load(const GoldenPart& golden, at::ScalarType dtype);
/// The golden inputs, or their first tokens.
FluxTransformerInputs inputs_of(const GoldenPart& golden, at::ScalarType dtype, int64_t image = -1, int64_t text = -1);

/// A way of running a transformer on several ranks.
struct FluxLayoutCase {
  int ring, ulysses, tp;
  bool ring_anything = false, ulysses_anything = false;
  bool rotate = true;

  int ranks() const { return ring * ulysses * tp; }
  bool takes_any_length() const { return ring_anything || ulysses_anything; }
  ParallelConfig config() const;
  /// Whether the degrees and the plain modes' rules hold for these inputs.
  bool accepts(const FluxTransformerInputs& inputs, int64_t heads) const;
  std::string name() const;
};

/// Every layout of so many ranks, for 4 heads, with every flag that its degrees allow.
std::vector<FluxLayoutCase> flux_layouts(const std::vector<int>& rank_counts);
/// The same, rings with both rotate methods.
std::vector<FluxLayoutCase> flux_layouts_of_both_rotations(const std::vector<int>& rank_counts);

}  // namespace pardiff::testing
