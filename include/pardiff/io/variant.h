#pragma once
#include <filesystem>
#include <string>

namespace pardiff {

/// Whether a folder has the weights of a part: STEM.safetensors (STEM.VARIANT.safetensors), or the index of its shards.
/// A link that leads nowhere counts; opening it says so. Throws: UsageError if stem or variant cannot be part of a
/// file's name.
bool has_weights(const std::filesystem::path& folder, const std::string& stem, const std::string& variant = "");

/// The variant that a part of a pipeline is read from: `variant` if the part has files of it, else none, its plain
/// files (as diffusers chooses, part by part).
std::string variant_of_part(const std::filesystem::path& folder, const std::string& stem, const std::string& variant);

}  // namespace pardiff
