#pragma once
#include <pardiff/io/image.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pardiff {

struct PngContent {
  Image image;
  std::map<std::string, std::string> text;
};

/// Throws: CheckpointError naming the file.
PngContent read_png(const std::filesystem::path& path);

/// Writes whole or not at all.
/// Throws: UsageError for a picture or text that a PNG cannot hold; CheckpointError if the file cannot be written.
void write_png(const std::filesystem::path& path, const Image& image,
               const std::vector<std::pair<std::string, std::string>>& text);

}  // namespace pardiff
