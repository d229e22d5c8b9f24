#pragma once
#include <map>
#include <string>
#include <vector>

namespace pardiff {

/// The parts of a FluxPipeline, and the classes that model_index.json may give each.
/// Source: diffusers' FluxPipeline.
const std::map<std::string, std::vector<std::string>>& flux_part_classes();

}  // namespace pardiff
