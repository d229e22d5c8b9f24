#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/io/image.h>
#include <pardiff/io/safetensors.h>

#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "support/failure.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

using testing::content_of;
using testing::expect_mentions;
using testing::put;
using testing::refusal;
using testing::TemporaryFolder;
using Texts = std::map<std::string, std::string>;

Image small_picture() {
  const auto golden = SafetensorsFile::open(testing::data_path("golden/square.safetensors"));
  return Image::from_tensor(golden.tensor("image")[0]);
}

TEST(Image, PixelsAreInterleavedRowByRow) {
  const auto pixels = at::arange(18, at::kFloat).view({3, 2, 3}) / 255;
  const auto image = Image::from_tensor(pixels);
  EXPECT_EQ(image.width, 3);
  EXPECT_EQ(image.height, 2);
  EXPECT_EQ(image.rgb, (std::vector<uint8_t>{0, 6, 12, 1, 7, 13, 2, 8, 14, 3, 9, 15, 4, 10, 16, 5, 11, 17}));
  EXPECT_TRUE(at::equal(image.to_tensor(), pixels));
}

TEST(Image, RoundsHalfToEvenAndClamps) {
  // 2.5 / 255 and 3.5 / 255 are chosen so that times 255 is exactly half in float32.
  const float down = 2.5F / 255;
  const float up = 3.5F / 255;
  ASSERT_EQ(down * 255.0F, 2.5F);
  ASSERT_EQ(up * 255.0F, 3.5F);
  const auto infinity = std::numeric_limits<float>::infinity();
  const auto row = at::tensor({down, up, -0.1F, 1.7F, -infinity, infinity});
  const auto image = Image::from_tensor(row.view({1, 1, 6}).expand({3, 1, 6}));
  const std::vector<uint8_t> expected = {2, 4, 0, 255, 0, 255};
  for (std::size_t i = 0; i < 18; ++i) EXPECT_EQ(image.rgb[i], expected[i / 3]) << i;
}

TEST(Image, TakesTheRoundingOfTheReferenceOnAWholePicture) {
  const auto golden = SafetensorsFile::open(testing::data_path("golden/square.safetensors")).tensor("image")[0];
  const auto image = Image::from_tensor(golden);
  const auto expected = (golden * 255).round().to(at::kByte).permute({1, 2, 0}).contiguous();
  ASSERT_EQ(static_cast<int64_t>(image.rgb.size()), expected.numel());
  EXPECT_EQ(std::memcmp(image.rgb.data(), expected.data_ptr(), image.rgb.size()), 0);
}

TEST(Image, AcceptsEveryFloatingDtypeAndAnyStrides) {
  const auto pixels = at::rand({4, 5, 3}).permute({2, 0, 1});
  EXPECT_EQ(Image::from_tensor(pixels.to(at::kDouble)).rgb, Image::from_tensor(pixels).rgb);
  EXPECT_EQ(Image::from_tensor(pixels.to(at::kBFloat16)).rgb,
            Image::from_tensor(pixels.to(at::kBFloat16).to(at::kFloat)).rgb);
}

TEST(Image, RefusesWhatIsNoPicture) {
  expect_mentions(refusal<ShapeError>([] { Image::from_tensor(at::ones({1, 3, 4, 4})); }), {"[1, 3, 4, 4]", "Float"});
  expect_mentions(refusal<ShapeError>([] { Image::from_tensor(at::ones({4, 4, 3})); }), {"[4, 4, 3]"});
  expect_mentions(refusal<ShapeError>([] { Image::from_tensor(at::ones({3, 0, 4})); }), {"[3, 0, 4]"});
  expect_mentions(refusal<ShapeError>([] { Image::from_tensor(at::ones({3, 4, 4}, at::kByte)); }), {"Byte"});
  expect_mentions(refusal<ShapeError>([] { Image::from_tensor(at::Tensor()); }), {"nothing"});
  auto pixels = at::ones({3, 4, 4});
  pixels[1][2][3] = std::nan("");
  expect_mentions(refusal<Error>([&] { Image::from_tensor(pixels); }), {"1 values", "out of 48"});
}

TEST(Image, SurvivesSavingWithItsText) {
  const TemporaryFolder folder;
  const auto image = small_picture();
  const std::string parameters = "prompt: a red circle\nseed: 42\ttab";
  const std::string unicode = "ein grüner Kreis 🟢 日本";
  image.save(folder / "x.png", {{"parameters", parameters}, {"prompt", unicode}, {"empty", ""}});
  const auto loaded = Image::load(folder / "x.png");
  EXPECT_EQ(loaded.width, image.width);
  EXPECT_EQ(loaded.height, image.height);
  EXPECT_EQ(loaded.rgb, image.rgb);
  EXPECT_EQ(Image::read_text(folder / "x.png"),
            (Texts{{"parameters", parameters}, {"prompt", unicode}, {"empty", ""}}));
  const auto bytes = content_of(folder / "x.png");
  EXPECT_NE(bytes.find("tEXtparameters"), std::string::npos);
  EXPECT_NE(bytes.find("iTXtprompt"), std::string::npos);
  EXPECT_EQ(bytes.find("tIME"), std::string::npos);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x.png"});
}

TEST(Image, EqualPicturesGiveEqualBytes) {
  const TemporaryFolder folder;
  small_picture().save(folder / "1.png", {{"a", "b"}});
  small_picture().save(folder / "2.png", {{"a", "b"}});
  EXPECT_EQ(content_of(folder / "1.png"), content_of(folder / "2.png"));
}

TEST(Image, RefusesToSaveWhatNoFormatHolds) {
  const TemporaryFolder folder;
  const auto image = small_picture();
  const auto message = [&](const std::string& name, const std::string& key, const std::string& value) {
    return refusal<UsageError>([&] { image.save(folder / name, {{key, value}}); });
  };
  expect_mentions(message("x.gif", "a", "b"), {"x.gif", ".png or .jpg or .jpeg or .webp"});
  expect_mentions(message("x", "a", "b"), {".png"});
  expect_mentions(message("x.png", "", "b"), {"keyword"});
  expect_mentions(message("x.png", std::string(80, 'k'), "b"), {"keyword"});
  expect_mentions(message("x.png", " k", "b"), {"keyword"});
  expect_mentions(message("x.png", "k\n", "b"), {"keyword"});
  expect_mentions(message("x.png", "k", std::string("a\0b", 3)), {"NUL"});
  expect_mentions(refusal<UsageError>([&] { Image{4, 4, {1, 2, 3}}.save(folder / "x.png"); }), {"4 x 4", "3 bytes"});
  expect_mentions(refusal<UsageError>([&] { Image{}.save(folder / "x.png"); }), {"0 x 0"});
  expect_mentions(refusal<CheckpointError>([&] { image.save(folder / "no/x.png"); }), {"does not exist"});
  EXPECT_TRUE(folder.names().empty());
}

class PictureFormat : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path named(const std::string& stem) const { return folder_ / (stem + GetParam()); }
  bool is_lossless() const { return std::string(GetParam()) != ".jpg"; }

  TemporaryFolder folder_;
};

TEST_P(PictureFormat, KeepsPictureAndText) {
  const auto image = small_picture();
  const std::string markup = "a <b> & \"c\": d\r\n\te &amp; \xc3\xa9";
  const Texts text = {{"parameters", std::string(200'000, 'p') + "\xe6\x97\xa5"}, {"prompt", markup}, {"empty", ""}};
  image.save(named("x"), {text.begin(), text.end()});
  image.save(named("y"), {text.begin(), text.end()});
  EXPECT_EQ(content_of(named("x")), content_of(named("y")));
  EXPECT_EQ(Image::read_text(named("x")), text);
  const auto loaded = Image::load(named("x"));
  EXPECT_EQ(loaded.width, image.width);
  EXPECT_EQ(loaded.height, image.height);
  if (is_lossless()) {
    EXPECT_EQ(loaded.rgb, image.rgb);
  } else {
    EXPECT_LT((loaded.to_tensor() - image.to_tensor()).abs().mean().item<float>(), 0.01F);
  }
  image.save(named("plain"));
  EXPECT_TRUE(Image::read_text(named("plain")).empty());
}

TEST_P(PictureFormat, IsKnownByItsBytesAndNamedInAnyCase) {
  std::string extension = GetParam();
  for (auto& c : extension) c = static_cast<char>(std::toupper(c));
  small_picture().save(folder_ / ("x" + extension));
  std::filesystem::rename(folder_ / ("x" + extension), folder_ / "x.dat");
  EXPECT_EQ(Image::load(folder_ / "x.dat").width, small_picture().width);
}

TEST_P(PictureFormat, RefusesABrokenFileAndNeverCrashes) {
  const auto path = named("broken");
  Image{2, 2, {0, 50, 100, 150, 200, 250, 10, 20, 30, 40, 50, 60}}.save(named("x"), {{"k", "v"}, {"u", "\xc3\xbc"}});
  const auto whole = content_of(named("x"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put(path, whole.substr(0, size));
    EXPECT_THROW(Image::load(path), CheckpointError) << size;
  }
  int refused = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto broken = whole;
    broken[i] = static_cast<char>(broken[i] ^ (1 << (i * 5 % 8)));
    put(path, broken);
    try {
      Image::load(path);
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10);
}

INSTANTIATE_TEST_SUITE_P(Formats, PictureFormat, ::testing::Values(".png", ".jpg", ".webp"),
                         [](const auto& instance) { return std::string(instance.param).substr(1); });

TEST(Image, ABrokenPngIsRefusedAndNeverCrashes) {
  const TemporaryFolder folder;
  const auto path = folder / "broken.png";
  Image{2, 2, std::vector<uint8_t>(12, 100)}.save(folder / "x.png", {{"k", "v"}, {"u", "ü"}});
  const auto whole = content_of(folder / "x.png");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put(path, whole.substr(0, size));
    EXPECT_THROW(Image::load(path), CheckpointError) << size;
  }
  int refused = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto broken = whole;
    broken[i] = static_cast<char>(broken[i] ^ (1 << (i * 5 % 8)));
    put(path, broken);
    try {
      Image::load(path);
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 40);
  put(path, "GIF89a..............");
  expect_mentions(refusal<CheckpointError>([&] { Image::load(path); }), {"broken.png", "no PNG, JPEG or WebP"});
  put(path, "version https://git-lfs.github.com/spec/v1\noid");
  expect_mentions(refusal<CheckpointError>([&] { Image::load(path); }), {"git-lfs pointer"});
  expect_mentions(refusal<CheckpointError>([&] { Image::load(folder / "no.png"); }), {"No such file"});
}

// Signature and IHDR of 2^20 x 2^20 pixels, with its right checksum: 3 TB if one believed it.
TEST(Image, AnAbsurdSizeIsRefusedBeforeMemoryIsAllocated) {
  const TemporaryFolder folder;
  const unsigned char header[] = {0x89, 'P',  'N',  'G', '\r', '\n', 0x1a, '\n', 0,   0,   0,   13,   'I',  'H',  'D',
                                  'R',  0,    0x10, 0,   0,    0,    0x10, 0,    0,   8,   2,   0,    0,    0,    0xc4,
                                  0x4a, 0x37, 0x92, 0,   0,    0,    0,    'I',  'D', 'A', 'T', 0x35, 0xaf, 0x06, 0x1e};
  put(folder / "x.png", std::string(reinterpret_cast<const char*>(header), sizeof header));
  expect_mentions(refusal<CheckpointError>([&] { Image::load(folder / "x.png"); }),
                  {"1048576 x 1048576", "at most 2^28"});
}

}  // namespace
}  // namespace pardiff
