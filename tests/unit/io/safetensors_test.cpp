#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/io/safetensors.h>
#include <sys/stat.h>

#include <cstring>
#include <string>
#include <utility>

#include "io/safetensors_header.h"
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

std::string with_length(const std::string& header, const std::string& data = "") {
  std::string file(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

const std::vector<at::ScalarType> kEveryDtype = {
    at::kDouble, at::kFloat,        at::kHalf,          at::kBFloat16,    at::kLong,   at::kInt,
    at::kShort,  at::kChar,         at::kUInt64,        at::kUInt32,      at::kUInt16, at::kByte,
    at::kBool,   at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
};

TEST(Safetensors, ReadsWhatThePythonPackageWrote) {
  const auto path = testing::data_path("golden/part_vae.safetensors");
  const auto file = SafetensorsFile::open(path);
  ASSERT_GT(file.tensors().size(), 20U);
  int64_t covered = 0;
  for (const auto& info : file.tensors()) {
    EXPECT_EQ(info.begin, covered);
    covered = info.end;
    const auto tensor = file.tensor(info.name);
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef(info.shape));
    EXPECT_EQ(static_cast<int64_t>(tensor.nbytes()), info.bytes());
    EXPECT_TRUE(tensor.is_floating_point() ? at::isfinite(tensor).all().item<bool>() : true) << info.name;
  }
  const auto content = content_of(path);
  EXPECT_EQ(std::memcmp(file.tensor(file.tensors().back().name).data_ptr(),
                        content.data() + content.size() - file.tensors().back().bytes(),
                        static_cast<std::size_t>(file.tensors().back().bytes())),
            0);
}

// The checkpoint was saved by Python too, with one dtype and tensors sorted by name: the same input must give its very
// bytes.
TEST(Safetensors, WritesTheVeryBytesOfThePythonPackage) {
  const auto path = testing::model_path("flux-shapes/vae/diffusion_pytorch_model.safetensors");
  const auto file = SafetensorsFile::open(path);
  std::vector<NamedTensor> tensors;
  for (const auto& info : file.tensors()) tensors.push_back({info.name, file.tensor(info.name)});
  const TemporaryFolder folder;
  write_safetensors(folder / "again.safetensors", tensors, file.metadata());
  EXPECT_TRUE(content_of(folder / "again.safetensors") == content_of(path));
}

TEST(Safetensors, EveryDtypeSurvivesBitForBit) {
  const TemporaryFolder folder;
  std::vector<NamedTensor> tensors;
  for (const auto dtype : kEveryDtype) {
    // Odd lengths, so that only the order by width keeps them aligned.
    auto bits =
        at::randint(0, dtype == at::kBool ? 2 : 256, {3, 5 * static_cast<int64_t>(c10::elementSize(dtype))}, at::kByte);
    tensors.push_back({c10::toString(dtype), bits.view(dtype)});
  }
  write_safetensors(folder / "all.safetensors", tensors, {{"format", "pt"}, {"who", "Zoë \"quoted\""}});
  const auto file = SafetensorsFile::open(folder / "all.safetensors");
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"who", "Zoë \"quoted\""}}));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(file.is_aligned(name)) << name;
    const auto read = file.tensor(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type());
    EXPECT_EQ(read.sizes(), tensor.sizes());
    EXPECT_EQ(std::memcmp(read.data_ptr(), tensor.data_ptr(), tensor.nbytes()), 0) << name;
  }
}

TEST(Safetensors, KeepsScalarsEmptyTensorsAndStridedViews) {
  const TemporaryFolder folder;
  const auto matrix = at::arange(12, at::kFloat).view({3, 4});
  write_safetensors(folder / "x.safetensors", {{"scalar", at::scalar_tensor(2.5)},
                                               {"empty", at::empty({0, 7})},
                                               {"transposed", matrix.t()},
                                               {"conjugated", at::complex(matrix, matrix).conj()}});
  const auto file = SafetensorsFile::open(folder / "x.safetensors");
  EXPECT_EQ(file.tensor("scalar").dim(), 0);
  EXPECT_EQ(file.tensor("scalar").item<float>(), 2.5F);
  EXPECT_EQ(file.tensor("empty").sizes(), at::IntArrayRef({0, 7}));
  EXPECT_TRUE(at::equal(file.tensor("transposed"), matrix.t()));
  EXPECT_TRUE(at::equal(file.tensor("conjugated"), at::complex(matrix, -matrix)));
}

TEST(Safetensors, AFileWithoutTensorsIsAFile) {
  const TemporaryFolder folder;
  write_safetensors(folder / "none.safetensors", {}, {});
  const auto file = SafetensorsFile::open(folder / "none.safetensors");
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST(Safetensors, BytesDoNotDependOnTheOrderGiven) {
  const TemporaryFolder folder;
  const NamedTensor a{"a", at::ones({3}, at::kByte)};
  const NamedTensor b{"b", at::ones({2}, at::kDouble)};
  write_safetensors(folder / "1.safetensors", {a, b});
  write_safetensors(folder / "2.safetensors", {b, a});
  EXPECT_EQ(content_of(folder / "1.safetensors"), content_of(folder / "2.safetensors"));
}

TEST(Safetensors, TensorsOutliveTheFileObjectAndTheFile) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  const auto expected = at::randn({1000});
  write_safetensors(path, {{"x", expected}});
  const auto tensor = SafetensorsFile::open(path).tensor("x");
  std::filesystem::remove(path);
  EXPECT_TRUE(at::equal(tensor, expected));
}

TEST(Safetensors, CopiesNothingAndNeverWritesToTheFile) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  write_safetensors(path, {{"x", at::zeros({8})}});
  const auto before = content_of(path);
  const auto file = SafetensorsFile::open(path);
  const auto tensor = file.tensor("x");
  EXPECT_EQ(tensor.data_ptr(), static_cast<const void*>(file.bytes("x")));
  tensor.fill_(7);
  EXPECT_EQ(file.tensor("x").sum().item<float>(), 56);
  EXPECT_EQ(content_of(path), before);
  EXPECT_EQ(SafetensorsFile::open(path).tensor("x").sum().item<float>(), 0);
}

TEST(Safetensors, UnalignedDataIsCopied) {
  const TemporaryFolder folder;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  const float value = 1.5F;
  put(folder / "x.safetensors", with_length(header, "\7" + std::string(reinterpret_cast<const char*>(&value), 4)));
  const auto file = SafetensorsFile::open(folder / "x.safetensors");
  EXPECT_FALSE(file.is_aligned("b"));
  EXPECT_EQ(file.tensor("a").item<int>(), 7);
  EXPECT_EQ(file.tensor("b").item<float>(), 1.5F);
  EXPECT_NE(file.tensor("b").data_ptr(), static_cast<const void*>(file.bytes("b")));
}

TEST(Safetensors, AMissingTensorIsNamedWithItsFile) {
  const auto file = SafetensorsFile::open(testing::data_path("golden/part_vae.safetensors"));
  EXPECT_FALSE(file.contains("weight.nothing"));
  expect_mentions(refusal<CheckpointError>([&] { file.tensor("weight.nothing"); }),
                  {"'weight.nothing'", "part_vae.safetensors"});
}

TEST(Safetensors, FollowsSymbolicLinksAndSaysWhereADanglingOneLeads) {
  const TemporaryFolder folder;
  write_safetensors(folder / "blob", {{"x", at::ones({2})}});
  std::filesystem::create_symlink("blob", folder / "link.safetensors");
  EXPECT_EQ(SafetensorsFile::open(folder / "link.safetensors").tensors().size(), 1U);
  std::filesystem::remove(folder / "blob");
  expect_mentions(refusal<CheckpointError>([&] { SafetensorsFile::open(folder / "link.safetensors"); }),
                  {"link.safetensors", "symbolic link to blob", "does not exist"});
}

struct HostileFile {
  const char* name;
  std::string content;
  std::vector<std::string> mentioned;
};

void PrintTo(const HostileFile& file, std::ostream* stream) { *stream << file.name; }

std::string tensor_entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::string raw_length(uint64_t length, const std::string& rest) {
  std::string file = with_length("") + rest;
  std::memcpy(file.data(), &length, 8);
  return file;
}

std::string two_tensors(const std::string& first, const std::string& second) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
}

std::vector<HostileFile> hostile_files() {
  const std::string four(4, 'x');
  const std::string deep(100'000, '[');
  return {
      {"Empty", "", {"0 bytes", "truncated"}},
      {"ShorterThanALength", "abc", {"3 bytes", "truncated"}},
      {"HeaderLongerThanTheFile", raw_length(1000, "{}"), {"claims 1000 bytes", "only 2 follow", "truncated"}},
      {"HeaderOfAllBits", raw_length(~uint64_t{0}, "{}"), {"18446744073709551615", "not a safetensors file"}},
      {"HeaderOverTheLimit", raw_length(100'000'001, "{}"), {"100000001", "100000000"}},
      {"HeaderOfNoBytes", with_length("", "data"), {"does not begin with '{'"}},
      {"HeaderIsAList", with_length("[]"), {"does not begin with '{'"}},
      {"HeaderIsNotJson", with_length("{\"a\":"), {"not JSON", "byte"}},
      {"HeaderIsNotUtf8", with_length("{\"\xff\":1}"), {"not JSON"}},
      {"GitLfsPointer",
       "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 23782506688\n",
       {"git-lfs pointer", "git lfs pull"}},
      {"DeepNesting", with_length("{\"a\":" + deep), {"nested deeper"}},
      {"MillionsOfValues",
       with_length(R"({"w":{"shape":[)" +
                   [] {
                     std::string zeros;
                     for (int i = 0; i < 4'100'000; ++i) zeros += "0,";
                     return zeros;
                   }() +
                   "0]}}"),
       {"more than 4000000 values"}},
      {"DuplicateNames",
       with_length(
           R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
           four),
       {"'w'", "twice"}},
      {"DuplicateFields",
       with_length(R"({"w":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})", four),
       {"'dtype'", "twice"}},
      {"EntryIsANumber", with_length(R"({"w":1})"), {"'w'", "is 1", "expected an object"}},
      {"NoShape", with_length(R"({"w":{"dtype":"U8","data_offsets":[0,4]}})", four), {"'w'", "no shape"}},
      {"NoOffsets", with_length(R"({"w":{"dtype":"U8","shape":[4]}})", four), {"'w'", "no data_offsets"}},
      {"UnknownDtype", with_length(tensor_entry(R"("F31")", "[1]", "[0,4]"), four), {"'w'", "F31", "BF16"}},
      {"DtypeIsANumber", with_length(tensor_entry("32", "[1]", "[0,4]"), four), {"'w'", "dtype is 32"}},
      {"ShapeIsAString", with_length(tensor_entry(R"("U8")", R"("4")", "[0,4]"), four), {"'w'", "shape"}},
      {"NegativeSize", with_length(tensor_entry(R"("U8")", "[-4]", "[0,4]"), four), {"'w'", "-4"}},
      {"FractionalSize", with_length(tensor_entry(R"("U8")", "[4.0]", "[0,4]"), four), {"'w'", "4.0"}},
      {"SizeOver63Bits",
       with_length(tensor_entry(R"("U8")", "[18446744073709551615]", "[0,4]"), four),
       {"'w'", "18446744073709551615"}},
      {"ShapeOverflows", with_length(tensor_entry(R"("U8")", "[4294967296,4294967296]", "[0,0]")), {"'w'", "2^63"}},
      {"EmptyShapeOverflows",
       with_length(tensor_entry(R"("U8")", "[0,4294967296,4294967296]", "[0,0]")),
       {"'w'", "2^63"}},
      {"TooManyDims",
       with_length(tensor_entry(R"("U8")",
                                "[1" +
                                    [] {
                                      std::string ones;
                                      for (int i = 0; i < 100; ++i) ones += ",1";
                                      return ones;
                                    }() +
                                    "]",
                                "[0,1]"),
                   "x"),
       {"'w'", "at most 64"}},
      {"ShapeLargerThanBytes",
       with_length(tensor_entry(R"("F32")", "[2]", "[0,4]"), four),
       {"'w'", "4 bytes", "takes 8"}},
      {"ShapeSmallerThanBytes",
       with_length(tensor_entry(R"("U8")", "[3]", "[0,4]"), four),
       {"'w'", "4 bytes", "takes 3"}},
      {"EndBeforeBegin", with_length(tensor_entry(R"("U8")", "[4]", "[4,0]"), four), {"'w'", "[4, 0]"}},
      {"NegativeOffset", with_length(tensor_entry(R"("U8")", "[4]", "[-4,0]"), four), {"'w'", "-4"}},
      {"ThreeOffsets", with_length(tensor_entry(R"("U8")", "[4]", "[0,4,8]"), four), {"'w'", "data_offsets"}},
      {"DataTruncated", with_length(tensor_entry(R"("U8")", "[5]", "[0,5]"), four), {"'w'", "5", "truncated"}},
      {"DataFarBeyondTheFile",
       with_length(tensor_entry(R"("U8")", "[1099511627776]", "[0,1099511627776]"), four),
       {"'w'", "1099511627776", "truncated"}},
      {"TrailingBytes", with_length(tensor_entry(R"("U8")", "[4]", "[0,4]"), four + "y"), {"byte 4", "5 bytes"}},
      {"Overlap", with_length(two_tensors("[0,4]", "[2,6]"), "xxxxxx"), {"'b'", "overlaps", "'a'"}},
      {"SameBytesTwice", with_length(two_tensors("[0,4]", "[0,4]"), four), {"'b'", "overlaps", "'a'"}},
      {"Gap", with_length(two_tensors("[0,4]", "[5,9]"), "xxxxxxxxx"), {"bytes 4 to 5", "'b'"}},
      {"GapAtTheBegin", with_length(tensor_entry(R"("U8")", "[4]", "[1,5]"), "xxxxx"), {"bytes 0 to 1", "'w'"}},
      {"MetadataIsAList", with_length(R"({"__metadata__":[]})"), {"__metadata__"}},
      {"MetadataHoldsANumber", with_length(R"({"__metadata__":{"format":1}})"), {"'format'", "is 1"}},
      {"NameWithControlCharacters", with_length(R"({"a\n\u001b[2J":1})"), {"'a\\x0a\\x1b[2J'"}},
  };
}

class HostileSafetensors : public ::testing::TestWithParam<HostileFile> {};

TEST_P(HostileSafetensors, IsRefusedByName) {
  const TemporaryFolder folder;
  put(folder / "hostile.safetensors", GetParam().content);
  const auto message = refusal<CheckpointError>([&] { SafetensorsFile::open(folder / "hostile.safetensors"); });
  expect_mentions(message, GetParam().mentioned);
  expect_mentions(message, {"hostile.safetensors"});
  EXPECT_LT(message.size(), 1000U);
}

INSTANTIATE_TEST_SUITE_P(Safetensors, HostileSafetensors, ::testing::ValuesIn(hostile_files()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, AFileCutAnywhereIsRefusedAndNeverCrashes) {
  const TemporaryFolder folder;
  write_safetensors(folder / "whole.safetensors", {{"a", at::arange(3)}, {"b", at::ones({2, 2})}});
  const auto whole = content_of(folder / "whole.safetensors");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put(folder / "cut.safetensors", whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile::open(folder / "cut.safetensors"), CheckpointError) << size;
  }
}

TEST(Safetensors, AFlippedBitIsRefusedOrDescribesTensorsWithinTheFile) {
  const TemporaryFolder folder;
  write_safetensors(folder / "whole.safetensors", {{"a", at::arange(3)}, {"b", at::ones({2, 2})}});
  const auto whole = content_of(folder / "whole.safetensors");
  int refused = 0;
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    auto broken = whole;
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ (1 << (bit % 8)));
    try {
      const auto header = read_safetensors_header(broken, "broken");
      int64_t end = 0;
      for (const auto& info : header.tensors) {
        EXPECT_EQ(std::exchange(end, info.end), info.begin) << bit;
      }
      EXPECT_EQ(header.data_begin + end, static_cast<int64_t>(whole.size())) << bit;
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(Safetensors, FoldersAndPipesAreRefusedWithoutWaiting) {
  const TemporaryFolder folder;
  expect_mentions(refusal<CheckpointError>([&] { SafetensorsFile::open(folder.path()); }), {"a folder"});
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_mentions(refusal<CheckpointError>([&] { SafetensorsFile::open(folder / "pipe"); }), {"not a regular file"});
  expect_mentions(refusal<CheckpointError>([&] { SafetensorsFile::open(folder / "no"); }), {"No such file"});
}

TEST(Safetensors, ABoolThatIsNeitherTrueNorFalseIsRefused) {
  const TemporaryFolder folder;
  put(folder / "x.safetensors", with_length(tensor_entry(R"("BOOL")", "[3]", "[0,3]"), std::string("\0\1\2", 3)));
  const auto file = SafetensorsFile::open(folder / "x.safetensors");
  expect_mentions(refusal<CheckpointError>([&] { file.tensor("w"); }), {"'w'", "byte 2"});
}

TEST(Safetensors, RefusesToWriteWhatNoReaderWouldTake) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  const auto x = at::ones({2});
  expect_mentions(refusal<UsageError>([&] { write_safetensors(path, {{"x", x}, {"x", x}}); }), {"'x'", "twice"});
  expect_mentions(refusal<UsageError>([&] { write_safetensors(path, {{"", x}}); }), {"name"});
  expect_mentions(refusal<UsageError>([&] { write_safetensors(path, {{"__metadata__", x}}); }), {"__metadata__"});
  expect_mentions(refusal<UsageError>([&] { write_safetensors(path, {{"x", at::Tensor()}}); }), {"'x'", "undefined"});
  expect_mentions(refusal<UsageError>([&] {
                    write_safetensors(path, {{"x", x.to(at::kComplexDouble)}});
                  }),
                  {"'x'", "ComplexDouble"});
  expect_mentions(refusal<UsageError>([&] { write_safetensors(path, {{"x", x.to_sparse()}}); }), {"'x'", "dense"});
  expect_mentions(refusal<UsageError>([&] { write_safetensors(path, {{"\xff", x}}); }), {"UTF-8"});
  expect_mentions(refusal<UsageError>([&] { write_safetensors(path, {{"x", x}}, {{"k", "\xff"}}); }), {"UTF-8"});
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace pardiff
