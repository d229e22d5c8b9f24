#include "distributed/sweep_problems.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <pardiff/core/check.h>

#include <random>

namespace pardiff::testing {
namespace {

constexpr MaskKind kMasks[] = {MaskKind::kNone, MaskKind::kKeyPadding, MaskKind::kAdditive, MaskKind::kBoolean,
                               MaskKind::kCausal};
constexpr std::pair<int64_t, int64_t> kHeads[] = {{1, 1}, {3, 3}, {4, 4}, {8, 8}, {6, 3}, {8, 2}};
constexpr int64_t kMostImage = 12, kMostText = 9;
constexpr size_t kMostFailures = 20;

}  // namespace

std::vector<AttentionProblem> sweep_problems(int64_t image) {
  std::vector<AttentionProblem> problems;
  uint64_t seed = static_cast<uint64_t>(image) * 10000;
  for (int64_t text = 0; text <= kMostText; ++text) {
    for (const auto& [heads, key_heads] : kHeads) {
      ++seed;  // an odd number of problems, so that what a seed's parity decides meets every batch and mask
      for (int64_t batch = 1; batch <= 2; ++batch) {
        for (const auto mask : kMasks) {
          problems.push_back({image, text, heads, key_heads, batch, mask, at::kDouble, 8, ++seed});
          if (seed % 2 == 0) problems.back().dtype = at::kFloat;
        }
      }
    }
  }
  return problems;
}

std::vector<AttentionProblem> edge_problems() {
  std::vector<AttentionProblem> problems;
  uint64_t seed = 0;
  // Tokens: none at all; one; fewer than ranks of either kind; one more and one fewer than a multiple of the ranks.
  const std::pair<int64_t, int64_t> tokens[] = {{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 5}, {5, 2}, {12, 0}, {13, 11}};
  for (const auto& [image, text] : tokens) {
    for (const auto& [heads, key_heads] : {std::pair{1, 1}, {4, 4}, {6, 3}, {6, 1}}) {
      for (const auto mask : kMasks) {
        problems.push_back({image, text, heads, key_heads, 2, mask, at::kDouble, 8, ++seed});
      }
    }
  }
  return problems;
}

std::vector<AttentionProblem> half_precision_problems() {
  std::vector<AttentionProblem> problems;
  for (auto problem : edge_problems()) {
    if (problem.image + problem.text == 0) continue;
    problem.dtype = problem.seed % 3 == 0 ? at::kHalf : at::kBFloat16;
    problems.push_back(problem);
  }
  return problems;
}

std::vector<AttentionProblem> sampled_problems(int count, uint64_t seed) {
  std::vector<AttentionProblem> all, sample;
  for (int64_t image = 1; image <= kMostImage; ++image) {
    for (const auto& problem : sweep_problems(image)) all.push_back(problem);
  }
  std::mt19937_64 random(seed);  // its numbers are fixed by the standard, those of std::shuffle are not
  for (int i = 0; i < count && !all.empty(); ++i) {
    const size_t chosen = random() % all.size();
    sample.push_back(all[chosen]);
    std::swap(all[chosen], all.back());
    all.pop_back();
  }
  return sample;
}

std::vector<SolvedProblem> solve_all(const std::vector<AttentionProblem>& problems) {
  std::vector<SolvedProblem> solved(problems.size());
  at::parallel_for(0, static_cast<int64_t>(problems.size()), 16, [&](int64_t begin, int64_t end) {
    for (auto i = begin; i < end; ++i) solved[i] = solve(problems[i]);
  });
  return solved;
}

std::vector<std::string> sweep(World& world, const std::vector<SolvedProblem>& problems, const Takes& takes,
                               size_t& cases) {
  at::set_num_threads(1);
  auto all_ways = attention_ways(world.size(), world.device().type());
  // Autograd has one thread per GPU: in backward, ranks that are threads would wait in it for each other.
  const bool backward = world.device().is_cpu() || world.launch_env().launcher != "threads";
  for (auto& way : all_ways) way.backward = backward;
  std::vector<std::string> failures;
  cases = 0;
  for (size_t p = 0; p < problems.size(); ++p) {
    const auto& problem = problems[p].problem;
    std::vector<const AttentionWay*> ways;
    for (const auto& way : all_ways) {
      if (way.accepts(problem)) ways.push_back(&way);
    }
    for (size_t w = 0; w < ways.size(); ++w) {
      if (!takes(p, w, ways.size())) continue;
      ++cases;
      const auto what = [&] { return text_of(problem.to_string(), "; ", ways[w]->to_string()); };
      try {
        const double error = attention_errors(problems[p], *ways[w], world).largest();
        if (!(error <= tolerance_of(problem.dtype)) && failures.size() < kMostFailures) {
          failures.push_back(text_of("rank ", world.rank(), ": error ", error, " for ", what()));
        }
      } catch (const std::exception& failure) {
        throw std::runtime_error(text_of(failure.what(), " [in ", what(), "]"));
      }
    }
  }
  return failures;
}

}  // namespace pardiff::testing
