#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/core/trace.h>

#include <string>

namespace pardiff::cli {

/// Every rank's spans as one trace in Chrome's JSON format, which Perfetto reads: a process for each rank, its
/// transfers beside its own work. Ranks of one host share a clock; another host's is set by the end of a barrier, so it
/// is right to the barrier's skew. Empty on ranks but 0. Collective: every rank of the world, traced or not.
std::string gather_trace(const Trace& trace, World& world);

}  // namespace pardiff::cli
