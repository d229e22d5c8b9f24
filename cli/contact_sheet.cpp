#include "cli/contact_sheet.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace pardiff::cli {
namespace {

constexpr int64_t kLongestSide = 256;  // pixels of a picture in the sheet
constexpr int64_t kGap = 8;

// [3, height, width], each pixel the mean of those it stands for.
at::Tensor made_small(const Image& picture) {
  const auto pixels = picture.to_tensor();
  const int64_t longest = std::max<int64_t>(picture.height, picture.width);
  if (longest <= kLongestSide) return pixels;
  const auto scaled = [&](int64_t side) { return std::max<int64_t>(1, side * kLongestSide / longest); };
  return at::adaptive_avg_pool2d(pixels, {scaled(picture.height), scaled(picture.width)});
}

}  // namespace

Image contact_sheet(const std::vector<Image>& pictures) {
  if (pictures.size() == 1) return Image::from_tensor(made_small(pictures.front()));
  std::vector<at::Tensor> small;
  int64_t height = 1, width = 1;  // pictures of one run have one size
  for (const auto& picture : pictures) {
    small.push_back(made_small(picture));
    height = std::max(height, small.back().size(1));
    width = std::max(width, small.back().size(2));
  }
  const auto count = static_cast<int64_t>(pictures.size());
  const auto columns = std::max<int64_t>(1, std::llround(std::ceil(std::sqrt(static_cast<double>(count)))));
  const int64_t rows = std::max<int64_t>(1, (count + columns - 1) / columns);
  auto sheet = at::ones({3, rows * (height + kGap) + kGap, columns * (width + kGap) + kGap});
  for (int64_t i = 0; i < count; ++i) {
    const auto& picture = small[static_cast<size_t>(i)];
    sheet.narrow(1, kGap + i / columns * (height + kGap), picture.size(1))
        .narrow(2, kGap + i % columns * (width + kGap), picture.size(2))
        .copy_(picture);
  }
  return Image::from_tensor(sheet);
}

}  // namespace pardiff::cli
