#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/io/config_file.h>

#include "support/failure.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

using testing::expect_mentions;
using testing::put;
using testing::refusal;
using testing::TemporaryFolder;

ConfigFile parsed(const std::string& text) { return ConfigFile::parse(text, "a.json"); }

TEST(ConfigFile, ReadsTheConfigsOfADiffusersFolder) {
  const auto transformer = ConfigFile::open(testing::model_path("flux-shapes/transformer/config.json"));
  EXPECT_EQ(transformer.class_name(), "FluxTransformer2DModel");
  EXPECT_EQ(transformer.integers("axes_dims_rope", {}), (std::vector<int64_t>{8, 12, 12}));
  EXPECT_EQ(transformer.positive_integer("num_layers", 19, 1000), 3);
  EXPECT_TRUE(transformer.boolean("guidance_embeds", false));
  const auto encoder = ConfigFile::open(testing::model_path("flux-shapes/text_encoder/config.json"));
  EXPECT_EQ(encoder.class_name(), "CLIPTextModel");
  const auto index = ConfigFile::open(testing::model_path("flux-shapes/model_index.json"));
  EXPECT_EQ(index.component("transformer"), std::pair(std::string("diffusers"), std::string("FluxTransformer2DModel")));
}

TEST(ConfigFile, ReadsEveryType) {
  const auto config = parsed(R"({"i":-3,"n":1e-6,"b":true,"s":"Zoë","l":[1,2],"t":["a"],"big":9223372036854775807})");
  EXPECT_EQ(config.integer("i", 0), -3);
  EXPECT_EQ(config.optional_integer("i"), -3);
  EXPECT_EQ(config.integer("big", 0), 9223372036854775807);
  EXPECT_EQ(config.number("n", 0), 1e-6);
  EXPECT_EQ(config.number("i", 0), -3.0);
  EXPECT_TRUE(config.boolean("b", false));
  EXPECT_EQ(config.string("s", ""), "Zoë");
  EXPECT_EQ(config.integers("l", {}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(config.strings("t", {}), std::vector<std::string>{"a"});
  EXPECT_EQ(config.keys(), (std::vector<std::string>{"b", "big", "i", "l", "n", "s", "t"}));
}

TEST(ConfigFile, NullCountsAsAbsent) {
  const auto config = parsed(R"({"x":null,"_class_name":null,"architectures":["T5EncoderModel"]})");
  EXPECT_FALSE(config.has("x"));
  EXPECT_FALSE(config.has("y"));
  for (const char* key : {"x", "y"}) {
    EXPECT_EQ(config.integer(key, 5), 5);
    EXPECT_EQ(config.positive_integer(key, 0, 10), 0);
    EXPECT_EQ(config.optional_integer(key), std::nullopt);
    EXPECT_EQ(config.number(key, 0.5), 0.5);
    EXPECT_TRUE(config.boolean(key, true));
    EXPECT_EQ(config.string(key, "d"), "d");
    EXPECT_EQ(config.integers(key, {7}), std::vector<int64_t>{7});
    EXPECT_EQ(config.component(key), std::nullopt);
  }
  EXPECT_EQ(config.class_name(), "T5EncoderModel");
  EXPECT_EQ(parsed("{}").class_name(), "");
  EXPECT_TRUE(parsed("{}").keys().empty());
}

TEST(ConfigFile, AWrongTypeNamesFileKeyValueAndExpectation) {
  const auto config = parsed(R"({"s":"12","f":1.5,"b":true,"l":[1,"2"],"big":18446744073709551615,"o":{}})");
  expect_mentions(refusal<CheckpointError>([&] { config.integer("s", 0); }),
                  {"a.json", "'s'", "\"12\"", "expected an integer"});
  expect_mentions(refusal<CheckpointError>([&] { config.integer("f", 0); }), {"1.5"});
  expect_mentions(refusal<CheckpointError>([&] { config.integer("b", 0); }), {"true"});
  expect_mentions(refusal<CheckpointError>([&] { config.integer("big", 0); }), {"18446744073709551615"});
  expect_mentions(refusal<CheckpointError>([&] { config.optional_integer("s"); }), {"'s'"});
  expect_mentions(refusal<CheckpointError>([&] { config.number("b", 0); }), {"true", "expected a number"});
  expect_mentions(refusal<CheckpointError>([&] { config.boolean("f", false); }), {"expected true or false"});
  expect_mentions(refusal<CheckpointError>([&] { config.string("f", ""); }), {"expected a string"});
  expect_mentions(refusal<CheckpointError>([&] { config.integers("l", {}); }), {"[1,\"2\"]", "list of integers"});
  expect_mentions(refusal<CheckpointError>([&] { config.integers("f", {}); }), {"list of integers"});
  expect_mentions(refusal<CheckpointError>([&] { config.strings("l", {}); }), {"list of strings"});
  expect_mentions(refusal<CheckpointError>([&] { config.refuse("f", "expected a multiple of 8"); }),
                  {"a.json", "'f'", "1.5", "a multiple of 8"});
}

TEST(ConfigFile, AbsurdSizesAreRefused) {
  const auto config = parsed(R"({"a":0,"b":-1,"c":10,"d":11,"e":1})");
  EXPECT_EQ(config.positive_integer("c", 1, 10), 10);
  EXPECT_EQ(config.positive_integer("e", 2, 10), 1);
  for (const char* key : {"a", "b", "d"}) {
    expect_mentions(refusal<CheckpointError>([&] { config.positive_integer(key, 1, 10); }),
                    {"a.json", key, "expected an integer from 1 to 10"});
  }
}

TEST(ConfigFile, ComponentsAreALibraryAndAClass) {
  const auto config = parsed(
      R"({"vae":["diffusers","AutoencoderKL"],"image_encoder":[null,null],"one":["a"],"half":["a",null],"n":3})");
  EXPECT_EQ(config.component("vae"), std::pair(std::string("diffusers"), std::string("AutoencoderKL")));
  EXPECT_EQ(config.component("image_encoder"), std::nullopt);
  for (const char* key : {"one", "half", "n"}) {
    expect_mentions(refusal<CheckpointError>([&] { config.component(key); }), {"a.json", key, "library and class"});
  }
  expect_mentions(refusal<CheckpointError>([&] { parsed(R"({"_class_name":3})").class_name(); }), {"_class_name"});
  expect_mentions(refusal<CheckpointError>([&] { parsed(R"({"architectures":[3]})").class_name(); }),
                  {"architectures"});
}

TEST(ConfigFile, HostileTextIsRefused) {
  const auto message = [](const std::string& text) { return refusal<CheckpointError>([&] { parsed(text); }); };
  expect_mentions(message(""), {"a.json", "not JSON"});
  expect_mentions(message("{\"a\":1,}"), {"not JSON"});
  expect_mentions(message("{} {}"), {"not JSON"});
  expect_mentions(message("{\"a\":NaN}"), {"not JSON"});
  expect_mentions(message("{\"a\":1e999}"), {"not JSON"});
  expect_mentions(message("{\"a\":\"\xff\"}"), {"not JSON"});
  expect_mentions(message("[1]"), {"expected an object"});
  expect_mentions(message("{\"a\":1,\"a\":2}"), {"'a'", "twice"});
  expect_mentions(message("{\"o\":{\"a\":1,\"a\":2}}"), {"'a'", "twice"});
  expect_mentions(message("{\"a\":" + std::string(1'000'000, '[')), {"nested deeper"});
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  expect_mentions(message(objects), {"nested deeper"});
  for (const auto& text : {std::string("\xff\xff", 2), std::string("{\"a\":\xff}"), std::string("\0{}", 3)}) {
    EXPECT_LT(message(text).size(), 500U);
  }
}

TEST(ConfigFile, FilesThatAreNotConfigsAreRefused) {
  const TemporaryFolder folder;
  const auto message = [&] { return refusal<CheckpointError>([&] { ConfigFile::open(folder / "c.json"); }); };
  expect_mentions(message(), {"c.json", "No such file"});
  put(folder / "c.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  expect_mentions(message(), {"c.json", "git-lfs pointer"});
  put(folder / "c.json", "");
  std::filesystem::resize_file(folder / "c.json", std::uintmax_t{1} << 40);  // sparse
  expect_mentions(message(), {"c.json", "1099511627776 bytes"});
}

}  // namespace
}  // namespace pardiff
