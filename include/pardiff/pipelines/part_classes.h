#pragma once
#include <pardiff/io/config_file.h>

#include <set>
#include <string>
#include <vector>

namespace pardiff {

/// A part of a model whose class FluxPipeline does not take.
struct ForeignPart {
  std::string name;                // "scheduler"
  std::string class_name;          // "nothing" where there is none
  std::vector<std::string> takes;  // the classes that it may have
};

/// The foreign parts that a model_index.json lists, or lacks, but for those that the caller brings along.
/// Throws: CheckpointError for an entry that is no pair of library and class.
std::vector<ForeignPart> foreign_parts(const ConfigFile& model_index, const std::set<std::string>& brought_along = {});

}  // namespace pardiff
