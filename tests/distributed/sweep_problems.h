#pragma once
#include <functional>
#include <string>
#include <vector>

#include "support/attention_problem.h"

namespace pardiff::testing {

/// Every problem of the sweep with `image` image tokens: 0..9 text tokens, heads, batch, masks. The number of a problem
/// is its seed, so that a failure can be repeated; float32 and float64 take turns.
std::vector<AttentionProblem> sweep_problems(int64_t image);

/// The corners, each of which the sample must not miss: a rank without tokens, without heads, of one kind of token
/// only; a single key; grouped heads used on two ranks; a batch row, a query or a whole block that sees nothing.
std::vector<AttentionProblem> edge_problems();

/// Corners in bfloat16 and float16, which are all that some kernels of a GPU take.
std::vector<AttentionProblem> half_precision_problems();

/// `count` different problems out of all, always the same ones.
std::vector<AttentionProblem> sampled_problems(int count, uint64_t seed);

/// Chooses among the ways that accept a problem: number of the problem, number of the way, how many there are.
using Takes = std::function<bool(size_t problem, size_t way, size_t ways)>;

/// Runs every problem in the ways that accept it and that `takes` wants, on the ranks of `world`; returns the failures,
/// each in words. On a GPU ranks that are threads run forward
/// only. Collective.
std::vector<std::string> sweep(World& world, const std::vector<SolvedProblem>& problems, const Takes& takes,
                               size_t& cases);

std::vector<SolvedProblem> solve_all(const std::vector<AttentionProblem>& problems);

}  // namespace pardiff::testing
