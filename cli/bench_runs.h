#pragma once
#include <c10/core/ScalarType.h>
#include <pardiff/comm/world.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench_result.h"

namespace pardiff::cli {

struct BenchOptions {
  std::vector<int64_t> sizes{};  // tokens, bytes or pixels of a side
  int64_t heads = 12, head_dim = 64;
  int64_t text_tokens = 128;
  std::string model = "bench";  // a preset, or what holds a config
  at::ScalarType dtype = at::kFloat;
  int64_t repeats = 9;
};

// All are collective: every rank of the world with equal arguments. Rounds go through all cases of a size one after the
// other, so that a machine that slows down does so for all of them.

/// The attention of every mode that the ranks can form, and the anything form where sizes do not divide.
BenchResult bench_attention(const BenchOptions& options, World& world);
/// Every operation among ranks; a size is what each rank puts in.
BenchResult bench_collectives(const BenchOptions& options, World& world);
/// A forward pass of a transformer with random weights in every layout of its tokens and layers, beside the planner's
/// prediction for this machine, which is measured first.
BenchResult bench_denoise(const BenchOptions& options, World& world);

}  // namespace pardiff::cli
