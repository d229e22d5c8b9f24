#pragma once
#include <pardiff/io/image.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pardiff {

using PictureText = std::vector<std::pair<std::string, std::string>>;

/// Pixels that a picture may have, to be read.
inline constexpr int64_t kMostPicturePixels = int64_t{1} << 28;

struct PictureContent {
  Image image;
  std::map<std::string, std::string> text;
};

/// What a format does. Whole pictures in memory; the names are for messages.
struct PictureCodec {
  const char* name;                     // "PNG"
  std::vector<std::string> extensions;  // in lower case, the usual one first
  /// Whether a file that starts with these bytes is of this format.
  bool (*recognises)(std::string_view bytes);
  /// Throws: CheckpointError naming the file.
  PictureContent (*read)(std::string_view bytes, const std::filesystem::path& path);
  /// The file's bytes. Throws: UsageError for a picture that the format cannot hold.
  std::vector<unsigned char> (*write)(const Image& image, const PictureText& text, const std::filesystem::path& path);
};

const PictureCodec& png_codec();
const PictureCodec& jpeg_codec();
const PictureCodec& webp_codec();

[[noreturn]] void fail_to_read_picture(const std::filesystem::path& path, const char* reason);
[[noreturn]] void fail_to_write_picture(const std::filesystem::path& path, const char* reason);
/// Throws: CheckpointError if a picture of this size is none that is read here.
void check_picture_size(int64_t width, int64_t height, const std::filesystem::path& path);

}  // namespace pardiff
