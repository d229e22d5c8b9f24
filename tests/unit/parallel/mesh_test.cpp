#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/parallel/mesh.h>

#include "support/failure.h"

namespace pardiff {
namespace {

using Ranks = std::vector<int>;
using testing::expect_failure;

TEST(Mesh, IsRowMajor) {
  for (int rank = 0; rank < 12; ++rank) {
    const Mesh mesh(rank, 12, {{"ring", 2}, {"ulysses", 3}, {"tp", 2}});
    EXPECT_EQ(mesh.index("ring"), rank / 6);
    EXPECT_EQ(mesh.index("ulysses"), rank / 2 % 3);
    EXPECT_EQ(mesh.index("tp"), rank % 2);
  }
}

TEST(Mesh, UlyssesGroupsAreNeighboursAndRingGroupsStride) {
  const Mesh mesh(2, 4, {{"ring", 2}, {"ulysses", 2}});
  EXPECT_EQ(mesh.ranks_along({"ulysses"}), (Ranks{2, 3}));
  EXPECT_EQ(mesh.ranks_along({"ring"}), (Ranks{0, 2}));
  EXPECT_EQ(mesh.ranks_along({"ring", "ulysses"}), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(mesh.ranks_along({"ulysses"}, 1), (Ranks{0, 1}));
  EXPECT_EQ(mesh.ranks_along({}), (Ranks{2}));
}

TEST(Mesh, AnAbsentAxisHasOneRank) {
  const Mesh mesh(1, 2, {{"ring", 2}});
  EXPECT_FALSE(mesh.has("tp"));
  EXPECT_EQ(mesh.size("tp"), 1);
  EXPECT_EQ(mesh.index("tp"), 0);
  EXPECT_EQ(mesh.ranks_along({"tp"}), (Ranks{1}));
}

TEST(Mesh, FurtherAxesKeepGroupsApart) {
  const Mesh mesh(9, 16, {{"dp", 2}, {"ring", 2}, {"fsdp", 2}, {"ulysses", 2}});
  EXPECT_EQ(mesh.ranks_along({"ring"}), (Ranks{9, 13}));
  EXPECT_EQ(mesh.ranks_along({"ulysses"}), (Ranks{8, 9}));
  EXPECT_EQ(mesh.ranks_along({"ring", "ulysses"}), (Ranks{8, 9, 12, 13}));
  EXPECT_EQ(mesh.to_string(), "dp=2, ring=2, fsdp=2, ulysses=2");
}

TEST(Mesh, FoldedAxesCountThroughBoth) {
  const Mesh mesh(5, 8, {{"fsdp", 2}, {"cfg", 2}, {"ring", 2}});
  const auto folded = mesh.folded("fsdp", "ring");
  EXPECT_EQ(folded.to_string(), "ring=4, cfg=2");
  EXPECT_EQ(folded.index("ring"), 3);
  EXPECT_EQ(folded.index("cfg"), 0);
  EXPECT_EQ(folded.ranks_along({"ring"}), (Ranks{0, 1, 4, 5}));
  EXPECT_EQ(folded.ranks_along({"cfg"}), (Ranks{5, 7}));
  EXPECT_FALSE(folded.has("fsdp"));
  EXPECT_EQ(mesh.folded("fsdp", "elsewhere").ranks_along({"elsewhere"}), mesh.ranks_along({"fsdp"}));
}

// The documentation's mesh: an inner axis folded into an outer one.
TEST(Mesh, RanksAreInTheOrderOfTheirIndices) {
  const Mesh mesh(0, 8, {{"ring", 2}, {"ulysses", 2}, {"fsdp", 2}});
  const auto folded = mesh.folded("fsdp", "ring");
  EXPECT_EQ(folded.ranks_along({"ring"}), (Ranks{0, 1, 4, 5}));
  EXPECT_EQ(folded.ranks_along({"ring", "ulysses"}), (Ranks{0, 2, 1, 3, 4, 6, 5, 7}));
}

TEST(Mesh, AnAxisOfOneRankCanBeAdded) {
  const Mesh mesh(1, 2, {{"ring", 2}});
  EXPECT_EQ(mesh.with_axis("ulysses").to_string(), "ring=2, ulysses=1");
  EXPECT_EQ(mesh.with_axis("ring"), mesh);
}

TEST(Mesh, HasAMessageForEveryRule) {
  expect_failure<ConfigError>([] { Mesh(0, 2, {{"", 2}}); }, {"no name"});
  expect_failure<ConfigError>([] { Mesh(0, 4, {{"a", 2}, {"a", 2}}); }, {"'a' occurs twice"});
  expect_failure<ConfigError>([] { Mesh(0, 2, {{"a", 0}}); }, {"'a' has size 0"});
  expect_failure<ConfigError>([] { Mesh(0, 2, {{"a", 2}, {"b", 2}}); }, {"a=2, b=2", "more than the 2 ranks"});
  expect_failure<ConfigError>([] { Mesh(0, 8, {{"a", 2}, {"b", 2}}); }, {"has 4 ranks", "world has 8"});
  expect_failure<ConfigError>([] { Mesh(2, 2, {{"a", 2}}); }, {"rank 2 is outside a world of 2"});
  expect_failure<ConfigError>([] { Mesh(-1, 2, {{"a", 2}}); }, {"rank -1 is outside"});
  expect_failure<ConfigError>(
      [] {
        Mesh(0, 2, {{"a", 2147483647}, {"b", 2147483647}, {"c", 4}});
      },
      {"more than the 2"});
}

}  // namespace
}  // namespace pardiff
