#pragma once
#include <pardiff/comm/world.h>

#include "cli/generate_flags.h"

namespace pardiff::cli {

/// Plans the layout that the ranks of `world` run (--parallel auto), and puts it into `flags` and `layout`: the first
/// of pardiff plan for the machine that --machine describes, or else for this one, measured now.
/// Collective: every rank, with equal arguments. Throws: ConfigError if no layout can run.
void choose_automatic_layout(GenerateFlags& flags, RankLayout& layout, World& world);

}  // namespace pardiff::cli
