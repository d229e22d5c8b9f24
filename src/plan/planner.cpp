#include <pardiff/core/check.h>
#include <pardiff/plan/planner.h>

#include <algorithm>
#include <cmath>

#include "plan/layouts.h"

namespace pardiff::plan {
namespace {

double gigabytes(double bytes) { return std::round(bytes / 1e8) / 10; }

// What a rank may use of its host's memory.
double memory_of_a_rank(const Machine& machine, int ranks) {
  const int sharing = machine.memory_is_shared ? std::min(ranks, machine.ranks_per_host) : 1;
  return machine.memory_bytes / sharing;
}

class Planner {
 public:
  Planner(const Work& work, const Machine& machine, int ranks, Profile profile)
      : work_(work), machine_(machine), ranks_(ranks), profile_(profile), blank_(blank_transformer(work)) {}

  std::vector<Layout> layouts() {
    for (const auto& config : all_layouts(ranks_)) {
      consider(config);
      if (const auto sharded = with_sharded_weights(config)) consider(*sharded);
    }
    std::stable_sort(found_.begin(), found_.end(), is_better);
    return std::move(found_);
  }

 private:
  static bool is_better(const Layout& a, const Layout& b) {
    if (a.is_possible() != b.is_possible()) return a.is_possible();
    if (a.step.total() != b.step.total()) return a.step.total() < b.step.total();
    return a.memory.total() < b.memory.total();
  }

  void consider(const ParallelConfig& config) {
    const auto refusal = refused(config);
    add(config, refusal);
    if (refusal.empty()) return;
    const auto form = anything_form(config);
    if (form && refused(*form).empty()) add(*form, {});
  }

  std::string refused(const ParallelConfig& config) { return why_refused(work_, *blank_, config, ranks_, profile_); }

  void add(const ParallelConfig& config, const std::string& refusal) {
    Layout layout{.config = config, .refusal = refusal};
    if (refusal.empty()) {
      layout.step = checked_step_time(work_, config, machine_, ranks_, profile_);
      layout.memory = rank_memory(work_, *blank_, config, ranks_, profile_);
      const double has = memory_of_a_rank(machine_, ranks_);
      if (layout.memory.total() > has) {
        layout.refusal =
            text_of("a rank needs ", gigabytes(layout.memory.total()), " GB (weights ",
                    gigabytes(layout.memory.weights), "), and ", machine_.name, " has ", gigabytes(has), " GB for it.");
      }
    }
    found_.push_back(std::move(layout));
  }

  const Work& work_;
  const Machine& machine_;
  int ranks_;
  Profile profile_;
  FluxTransformer2DModel blank_;
  std::vector<Layout> found_;
};

}  // namespace

std::vector<Layout> plan(const Work& work, const Machine& machine, int ranks, Profile profile) {
  check<ConfigError>(ranks >= 1, "the number of ranks is ", ranks, ". It starts at 1.");
  return Planner(work, machine, ranks, profile).layouts();
}

}  // namespace pardiff::plan
