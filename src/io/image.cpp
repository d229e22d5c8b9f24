#include <ATen/ops/from_blob.h>
#include <pardiff/core/check.h>
#include <pardiff/io/image.h>

#include <algorithm>
#include <cmath>

#include "io/png_codec.h"

namespace pardiff {
namespace {

void check_png_path(const std::filesystem::path& path) {
  check<UsageError>(path.extension() == ".png", "cannot write the picture ", path.string(),
                    ": only PNG is known. Give a name that ends in .png.");
}

}  // namespace

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
      nans += std::isnan(*value) ? 1 : 0;
      // nearbyint follows the rounding mode, which is half to even unless a program changes it.
      image.rgb[3 * i + channel] = static_cast<uint8_t>(std::nearbyint(std::clamp(*value, 0.0F, 1.0F) * 255.0F));
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

void Image::save(const std::filesystem::path& path,
                 const std::vector<std::pair<std::string, std::string>>& text) const {
  check_png_path(path);
  write_png(path, *this, text);
}

Image Image::load(const std::filesystem::path& path) { return read_png(path).image; }

std::map<std::string, std::string> Image::read_text(const std::filesystem::path& path) { return read_png(path).text; }

}  // namespace pardiff
