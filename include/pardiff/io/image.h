#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pardiff {

/// A picture of 8-bit RGB pixels, row by row.
struct Image {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> rgb = {};

  /// Shapes: pixels [3, height, width], any floating dtype and device, in 0..1 (values outside are clamped).
  /// Precision: value * 255 in float32, rounded half to even.
  /// Throws: ShapeError for another shape or dtype; Error if a value is NaN.
  static Image from_tensor(const at::Tensor& pixels);
  /// Shapes: returns [3, height, width], float32 in 0..1.
  at::Tensor to_tensor() const;

  /// Writes a PNG whole or not at all. `text` (UTF-8, keywords of 1 to 79 ASCII characters) is stored in it. Equal
  /// pictures with equal text give equal bytes. Throws: UsageError if the path does not end in .png or a text cannot be
  /// stored; CheckpointError if the file cannot be written.
  void save(const std::filesystem::path& path, const std::vector<std::pair<std::string, std::string>>& text = {}) const;
  /// Reads any PNG as 8-bit RGB; an alpha channel is dropped.
  /// Throws: CheckpointError if the file is not a sound PNG of at most 2^28 pixels.
  static Image load(const std::filesystem::path& path);
  /// The text stored in a PNG, as UTF-8.
  static std::map<std::string, std::string> read_text(const std::filesystem::path& path);
};

}  // namespace pardiff
