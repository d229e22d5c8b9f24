#pragma once
#include <pardiff/comm/world.h>

namespace pardiff::testing {

/// Runs every operation over `group` with even, uneven and zero counts and several dtypes. Collective: its ranks.
/// Throws as check_collectives.
void check_group(const ProcessGroup& group, at::Device device);
/// Runs the collectives of a transport with one rank, which a ProcessGroup of one never calls. Throws likewise.
void check_one_rank(comm::GroupBackend& backend, at::Device device);
/// Runs every operation over the group of all ranks and over groups of some of them, with even, uneven and zero counts
/// and several dtypes. Collective. Throws: std::runtime_error that says which result was wrong.
void check_collectives(World& world);
/// Operations that have been started may be waited for in any order. Collective.
void check_overlapping_operations(World& world);
/// Calls and bytes of every operation. Collective.
void check_counts(World& world);

}  // namespace pardiff::testing
