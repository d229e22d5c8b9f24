#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/core/trace.h>

#include <string>
#include <vector>

namespace pardiff::cli {

/// What the ranks' times in every stage went into, and what they sent: a line for each stage and rank, under a heading.
/// Empty on ranks but 0. Collective: every rank of the world, traced or not.
std::vector<std::string> trace_summary(const Trace& trace, World& world);

}  // namespace pardiff::cli
