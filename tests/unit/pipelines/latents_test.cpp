#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>

#include "pipelines/flux_latents.h"
#include "pipelines/flux_memory.h"
#include "pipelines/sha256.h"

namespace pardiff {
namespace {

TEST(Latents, ComeBackFromPacking) {
  const auto latents = at::randn({2, 16, 6, 10});
  const auto packed = flux::pack(latents);
  EXPECT_EQ(packed.sizes(), at::IntArrayRef({2, 15, 64}));
  // A token is a 2x2 patch, channel by channel.
  EXPECT_TRUE(at::equal(packed[1][6].view({16, 2, 2}), latents[1].slice(1, 2, 4).slice(2, 2, 4)));
  EXPECT_TRUE(at::equal(flux::unpack(packed, 6, 10), latents));
}

TEST(Latents, AreDrawnForTheBatchAtOnceOrPictureByPicture) {
  const auto batch = flux::draw_noise(Seeds(5), 3, 16, 8, 8, at::kFloat);
  const auto single = flux::draw_noise(Seeds({7, 5, 7}), 3, 16, 8, 8, at::kFloat);
  EXPECT_TRUE(at::equal(single[0], single[2]));
  EXPECT_TRUE(at::equal(single[1], batch[0]));
  EXPECT_FALSE(at::equal(batch[0], batch[1]));
}

TEST(Latents, AreTheRoundedFloat32OnesInBfloat16) {
  const auto wide = flux::draw_noise(Seeds(5), 2, 16, 8, 8, at::kFloat);
  EXPECT_TRUE(at::equal(flux::draw_noise(Seeds(5), 2, 16, 8, 8, at::kBFloat16), wide.to(at::kBFloat16)));
}

TEST(ImageIds, AreZeroThenRowThenColumn) {
  const auto ids = flux::image_ids(2, 3, at::kFloat);
  EXPECT_TRUE(
      at::equal(ids, at::tensor({0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 1, 0, 0, 1, 1, 0, 1, 2}).view({6, 3}).to(at::kFloat)));
  EXPECT_EQ(flux::image_ids(1, 302, at::kBFloat16)[301][2].item<float>(), 300.0f);  // 301 rounds to even
}

TEST(Sha256, IsThatOfTheBytes) {
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const auto letters = at::tensor({97, 98, 99}, at::kByte);
  EXPECT_EQ(sha256(letters), sha256("abc"));
  EXPECT_EQ(sha256(at::tensor({97, 0, 98, 0, 99, 0}, at::kByte).view({3, 2}).select(1, 0)), sha256("abc"));
}

TEST(MemoryEstimate, LetsOrdinaryPicturesPassAndRefusesAbsurdOnes) {
  const World world({.device = "cpu"});
  const FluxTransformerConfig transformer;
  const AutoencoderKLConfig vae{.block_out_channels = {128, 256, 512, 512}};
  const auto estimate = [&](int64_t side, int64_t ranks) {
    const flux::Workload work{.pictures = 1,
                              .height = side,
                              .width = side,
                              .image_tokens = side * side / 256,
                              .text_tokens = 512,
                              .context_ranks = ranks};
    const double least = flux::least_memory(work, transformer, vae);
    flux::check_memory(least, work, world);
    return least;
  };
  EXPECT_LT(estimate(256, 1), 2e9);
  EXPECT_GT(estimate(512, 1), estimate(256, 1));
  EXPECT_LE(estimate(512, 4), estimate(512, 1));
  EXPECT_THROW(estimate(65536, 1), ConfigError);
}

}  // namespace
}  // namespace pardiff
