#pragma once
#include <pardiff/comm/world.h>

namespace pardiff::testing {

/// Runs every operation over the group of all ranks and over groups of some of them, with even, uneven and zero counts
/// and several dtypes. Collective. Throws: std::runtime_error that says which result was wrong.
void check_collectives(World& world);
/// Operations that have been started may be waited for in any order. Collective.
void check_overlapping_operations(World& world);
/// Calls and bytes of every operation. Collective.
void check_counts(World& world);

}  // namespace pardiff::testing
