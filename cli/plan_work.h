#pragma once
#include <pardiff/plan/planner.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/model_presets.h"

namespace pardiff::cli {

/// Parameters of text encoders and VAE.
int64_t parameters_beside_transformer(const FluxConfigs& configs);

/// The table of kinds that comes with pardiff, and those of `more` (empty: none), which replace kinds of the same name.
/// Throws: CheckpointError for a file that cannot be used.
std::vector<plan::Machine> known_machines(const std::filesystem::path& more);
/// Throws: UsageError for an unknown name; it lists the known ones.
plan::Machine machine_named(const std::string& name, const std::filesystem::path& more);

}  // namespace pardiff::cli
