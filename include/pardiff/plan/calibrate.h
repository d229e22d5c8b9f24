#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/plan/planner.h>

namespace pardiff::plan {

/// Measures what the ranks of `world` can do, all of them at once as in a run, with the shapes and dtype of `work`:
/// products, reading weights, attention, norms, the host's time for an operation, and every operation among ranks that
/// a layout may use. About a second. A step predicted from it is one of this many ranks.
/// Collective: every rank, with equal arguments. Returns the same on every rank: the slowest rank's figures.
Machine measured(const Work& work, World& world);

}  // namespace pardiff::plan
