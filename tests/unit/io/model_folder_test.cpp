#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/io/config_file.h>
#include <pardiff/io/model_folder.h>

#include <cstdlib>
#include <map>
#include <optional>

#include "support/failure.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;
using testing::expect_mentions;
using testing::put;
using testing::refusal;
using testing::TemporaryFolder;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

// Clears what chooses the cache, and restores it.
class ModelFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* const value = std::getenv(name);
      before_[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
      ::unsetenv(name);
    }
    ::setenv("HOME", folder_.path().c_str(), 1);
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
  }

  // As huggingface_hub lays a repository out: blobs, and snapshots of links to them.
  fs::path make_cached(const fs::path& cache, const std::string& commit = kCommit) {
    const fs::path repository = cache / "models--owner--flux-shapes";
    const fs::path snapshot = repository / "snapshots" / commit;
    fs::create_directories(repository / "blobs");
    fs::create_directories(repository / "refs");
    fs::create_directories(snapshot / "transformer");
    put(repository / "refs/main", commit);
    for (const std::string name : {"config.json", "diffusion_pytorch_model.safetensors"}) {
      const auto blob = repository / "blobs" / ("hash-of-" + name);
      if (!fs::exists(blob)) fs::copy_file(testing::model_path("flux-shapes/transformer/" + name), blob);
      fs::create_symlink("../../../blobs/hash-of-" + name, snapshot / "transformer" / name);
    }
    return snapshot;
  }

  TemporaryFolder folder_;
  std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(ModelFolder, AFolderIsTakenAsItIs) {
  const auto path = testing::model_path("flux-shapes");
  EXPECT_EQ(resolve_model(path), path);
  fs::create_directory(folder_ / "mine");
  EXPECT_EQ(resolve_model("~/mine"), folder_ / "mine");
}

TEST_F(ModelFolder, ACachedRepositoryOpensThroughItsLinks) {
  const auto snapshot = make_cached(folder_ / ".cache/huggingface/hub");
  const auto found = resolve_model("owner/flux-shapes");
  EXPECT_EQ(found, snapshot);
  EXPECT_EQ(ConfigFile::open(found / "transformer/config.json").class_name(), "FluxTransformer2DModel");
  EXPECT_TRUE(Checkpoint::open(found / "transformer", "diffusion_pytorch_model").contains("proj_out.weight"));
}

TEST_F(ModelFolder, EachVariableChoosesTheCacheAndTheFirstOneWins) {
  const std::vector<std::pair<const char*, std::string>> weakest_first = {
      {"XDG_CACHE_HOME", "huggingface/hub"}, {"HF_HOME", "hub"}, {"HUGGINGFACE_HUB_CACHE", ""}, {"HF_HUB_CACHE", ""}};
  for (const auto& [variable, below] : weakest_first) {
    const auto base = folder_ / variable;
    const auto snapshot = make_cached(base / below, std::string(variable));
    ::setenv(variable, base.c_str(), 1);
    EXPECT_EQ(resolve_model("owner/flux-shapes").lexically_normal(), snapshot.lexically_normal()) << variable;
  }
  ::setenv("HF_HUB_CACHE", "", 1);
  ::setenv("HUGGINGFACE_HUB_CACHE", "~/HF_HUB_CACHE", 1);
  EXPECT_EQ(resolve_model("owner/flux-shapes").filename(), "HF_HUB_CACHE");
}

TEST_F(ModelFolder, RevisionsAreBranchesOrCommits) {
  const auto cache = folder_ / ".cache/huggingface/hub";
  make_cached(cache, "1111");
  const auto snapshot = make_cached(cache, "2222");
  const auto repository = cache / "models--owner--flux-shapes";
  fs::create_directories(repository / "refs/refs/pr");
  put(repository / "refs/refs/pr/1", "1111\n");
  EXPECT_EQ(resolve_model("owner/flux-shapes"), snapshot);
  EXPECT_EQ(resolve_model("owner/flux-shapes", "1111").filename(), "1111");
  EXPECT_EQ(resolve_model("owner/flux-shapes", "refs/pr/1").filename(), "1111");
  expect_mentions(refusal<CheckpointError>([] { resolve_model("owner/flux-shapes", "v9"); }),
                  {"owner/flux-shapes", "its revision 'v9'", "--revision v9"});
  for (const char* revision : {"", "../..", "/etc", "a/../../b"}) {
    expect_mentions(refusal<CheckpointError>([&] { resolve_model("owner/flux-shapes", revision); }),
                    {"not a revision"});
  }
  put(repository / "refs/main", "../../../..");
  expect_mentions(refusal<CheckpointError>([] { resolve_model("owner/flux-shapes"); }),
                  {"refs/main", "'../../../..'", "expected the name of a commit"});
}

TEST_F(ModelFolder, SaysWhereItLooked) {
  expect_mentions(refusal<CheckpointError>([] { resolve_model("black-forest-labs/FLUX.1-dev"); }),
                  {"'black-forest-labs/FLUX.1-dev'", "no such folder",
                   (folder_ / ".cache/huggingface/hub/models--black-forest-labs--FLUX.1-dev").string(),
                   "huggingface-cli download black-forest-labs/FLUX.1-dev"});
  ::setenv("HF_HOME", "/nowhere", 1);
  expect_mentions(refusal<CheckpointError>([] { resolve_model("a/b"); }), {"/nowhere/hub/models--a--b", "HF_HOME"});
  for (const char* name : {"", "nosuchfolder", "./a/b", "../a", "a/b/c", "a/..", "a b/c", "/no/such"}) {
    expect_mentions(refusal<CheckpointError>([&] { resolve_model(name); }), {"no such folder", "owner/name"});
  }
  put(folder_ / "file", "");
  expect_mentions(refusal<CheckpointError>([&] { resolve_model((folder_ / "file").string()); }), {"it is a file"});
}

}  // namespace
}  // namespace pardiff
