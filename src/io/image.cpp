#include <ATen/ops/from_blob.h>
#include <pardiff/core/check.h>
#include <pardiff/io/atomic_file.h>
#include <pardiff/io/image.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>

#include "io/file_bytes.h"
#include "io/picture_codec.h"

namespace pardiff {
namespace {

const std::vector<const PictureCodec*>& codecs() {
  static const std::vector<const PictureCodec*> all = {&png_codec(), &jpeg_codec(), &webp_codec()};
  return all;
}

std::string lower(std::string text) {
  for (auto& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

const PictureCodec& codec_of_name(const std::filesystem::path& path) {
  const auto extension = lower(path.extension().string());
  for (const auto* codec : codecs()) {
    if (std::ranges::find(codec->extensions, extension) != codec->extensions.end()) return *codec;
  }
  fail<UsageError>("cannot write the picture ", path.string(),
                   ": there are PNG, JPEG and WebP. Give a name that ends in ", joined(Image::extensions(), " or "),
                   ".");
}

PictureContent content_of(const std::filesystem::path& path) {
  const MappedReading reading;
  const auto file = MappedFile::open(path);
  refuse_git_lfs_pointer(file->text(), path);
  for (const auto* codec : codecs()) {
    if (!codec->recognises(file->text())) continue;
    auto content = codec->read(file->text(), path);
    reading.finish();
    return content;
  }
  fail_to_read_picture(path, "it is no PNG, JPEG or WebP");
}

// PNG's rules for a keyword, which serve all formats.
bool is_keyword(std::string_view key) {
  const bool is_printable = std::ranges::all_of(key, [](char c) { return c >= 0x20 && c < 0x7f; });
  return is_printable && !key.empty() && key.size() <= 79 && key.front() != ' ' && key.back() != ' ' &&
         key.find("  ") == std::string_view::npos;
}

void check_text(const PictureText& text, const std::filesystem::path& path) {
  for (const auto& [key, value] : text) {
    check<UsageError>(is_keyword(key), "cannot store the text ", in_quotes(key), " in ", path.string(),
                      ": a keyword has 1 to 79 printable ASCII characters without double or outer spaces.");
    check<UsageError>(value.find('\0') == std::string::npos, "cannot store the text ", in_quotes(key), " in ",
                      path.string(), ": it contains a NUL character.");
  }
}

}  // namespace

void fail_to_read_picture(const std::filesystem::path& path, const char* reason) {
  fail<CheckpointError>("cannot read the picture ", path.string(), ": ", reason, ".");
}

void fail_to_write_picture(const std::filesystem::path& path, const char* reason) {
  fail<CheckpointError>("cannot write the picture ", path.string(), ": ", reason, ".");
}

void check_picture_size(int64_t width, int64_t height, const std::filesystem::path& path) {
  check<CheckpointError>(width > 0 && height > 0 && width <= kMostPicturePixels / height, "cannot read the picture ",
                         path.string(), ": ", width, " x ", height, " pixels, at most 2^28 are allowed.");
}

std::vector<std::string> Image::extensions() {
  std::vector<std::string> extensions;
  for (const auto* codec : codecs()) {
    extensions.insert(extensions.end(), codec->extensions.begin(), codec->extensions.end());
  }
  return extensions;
}

bool Image::is_picture_name(const std::filesystem::path& path) {
  const auto known = extensions();
  return std::ranges::find(known, lower(path.extension().string())) != known.end();
}

Image Image::from_tensor(const at::Tensor& pixels) {
  check<ShapeError>(
      pixels.defined() && pixels.dim() == 3 && pixels.size(0) == 3 && pixels.numel() > 0 && pixels.is_floating_point(),
      "a picture needs floating-point pixels [3, height, width], got ",
      pixels.defined() ? text_of("[", joined(pixels.sizes()), "] of ", pixels.scalar_type()) : "nothing", ".");
  const auto planes = pixels.detach().to(at::kCPU, at::kFloat).contiguous();
  Image image;
  image.height = static_cast<int>(planes.size(1));
  image.width = static_cast<int>(planes.size(2));
  const auto count = static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width);
  image.rgb.resize(3 * count);
  const float* value = planes.const_data_ptr<float>();
  std::size_t nans = 0;
  for (std::size_t channel = 0; channel < 3; ++channel) {
    for (std::size_t i = 0; i < count; ++i, ++value) {  // [3, H, W] -> [H, W, 3]
      const bool is_nan = std::isnan(*value);
      nans += is_nan ? 1 : 0;
      const float level = is_nan ? 0.0F : std::clamp(*value, 0.0F, 1.0F) * 255.0F;
      // nearbyint follows the rounding mode, which is half to even unless a program changes it.
      image.rgb[3 * i + channel] = static_cast<uint8_t>(std::nearbyint(level));
    }
  }
  check<Error>(nans == 0, "the picture holds ", nans, " values that are not numbers, out of ", 3 * count,
               ". Some computation before it has failed; try --dtype float32.");
  return image;
}

at::Tensor Image::to_tensor() const {
  auto* const data = const_cast<uint8_t*>(rgb.data());
  const auto interleaved = at::from_blob(data, {height, width, 3}, at::TensorOptions().dtype(at::kByte));
  return interleaved.permute({2, 0, 1}).to(at::kFloat).div(255).contiguous();
}

void Image::save(const std::filesystem::path& path, const PictureText& text) const {
  const auto& codec = codec_of_name(path);
  check<UsageError>(
      width > 0 && height > 0 && rgb.size() == static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3,
      "cannot write the picture ", path.string(), ": ", width, " x ", height, " pixels with ", rgb.size(),
      " bytes of colour.");
  check_text(text, path);
  const auto bytes = codec.write(*this, text, path);
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

Image Image::load(const std::filesystem::path& path) { return content_of(path).image; }

std::map<std::string, std::string> Image::read_text(const std::filesystem::path& path) { return content_of(path).text; }

}  // namespace pardiff
