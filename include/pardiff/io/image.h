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

  /// Writes a picture, whole or not at all, in the format that its name ends in: PNG; WebP, without loss too; or JPEG,
  /// of quality 95 with full colour resolution. `text` (UTF-8, keywords of 1 to 79 ASCII characters) is stored in it:
  /// in PNG's text chunks, WebP's XMP (where control characters become U+FFFD) or JPEG's comments. Equal pictures with
  /// equal text give equal bytes. Throws: UsageError if the name ends otherwise, or the format cannot hold the size or
  /// a text; CheckpointError if the file cannot be written.
  void save(const std::filesystem::path& path, const std::vector<std::pair<std::string, std::string>>& text = {}) const;
  /// Reads any PNG, JPEG or WebP, whatever its name, as 8-bit RGB; an alpha channel is dropped.
  /// Throws: CheckpointError if the file is not a sound picture of at most 2^28 pixels.
  static Image load(const std::filesystem::path& path);
  /// The text stored in a picture, as UTF-8.
  static std::map<std::string, std::string> read_text(const std::filesystem::path& path);
  /// The endings of names that `save` knows: ".png", ...
  static std::vector<std::string> extensions();
  /// Whether a name ends in one of them; case does not count.
  static bool is_picture_name(const std::filesystem::path& path);
};

}  // namespace pardiff
