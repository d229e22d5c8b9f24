#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/parallel/plan.h>
#include <pardiff/parallel/shard.h>

#include "support/failure.h"

namespace pardiff {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;
using testing::expect_failure;

TEST(ContextParallelPlan, IsWrittenAsInTheDocumentation) {
  const ContextParallelInput by_1{.split_dim = 1, .expected_dims = 3}, by_0{.split_dim = 0};
  const ContextParallelPlan plan = {
      {"", {{"hidden_states", by_1}, {"pair", {by_1, by_0}}}},
      {"rope", {{0, ContextParallelInput{.split_dim = 0, .split_output = true}}}},
      {"blocks.*", {ContextParallelOutput{.gather_dim = 1}, ContextParallelOutput{.gather_dim = 2}}},
      {"proj_out", ContextParallelOutput{.gather_dim = 1, .expected_dims = 3}},
  };
  const auto& root = plan.at("").inputs();
  ASSERT_EQ(root.size(), 2u);
  EXPECT_EQ(root[0].first.name(), "hidden_states");
  EXPECT_FALSE(root[0].second.is_list());
  EXPECT_EQ(root[0].second.specs().at(0).split_dim, 1);
  EXPECT_TRUE(root[1].second.is_list());
  EXPECT_EQ(root[1].second.specs().size(), 2u);
  EXPECT_TRUE(plan.at("rope").inputs().at(0).first.is_index());
  EXPECT_EQ(plan.at("rope").inputs().at(0).first.index(), 0);
  EXPECT_TRUE(plan.at("blocks.*").is_list());
  EXPECT_EQ(plan.at("blocks.*").outputs().size(), 2u);
  EXPECT_FALSE(plan.at("proj_out").is_list());
  EXPECT_TRUE(plan.at("proj_out").inputs().empty());
}

TEST(TensorParallelStyle, KnowsTwoWords) {
  EXPECT_TRUE(TensorParallelStyle("colwise").is_column());
  EXPECT_FALSE(TensorParallelStyle("rowwise").is_column());
  EXPECT_TRUE(TensorParallelStyle::packed_colwise({1, 1}).is_column());
  EXPECT_TRUE(TensorParallelStyle::packed_rowwise({1, 4}).is_packed());
  expect_failure<ConfigError>([] { TensorParallelStyle("columnwise"); }, {"'columnwise'", "colwise", "rowwise"});
}

TEST(ShardRanges, AreEqualStretches) {
  EXPECT_EQ(shard_ranges("w", "colwise", 12, 3, 1), (Ranges{{4, 8}}));
  EXPECT_EQ(shard_ranges("w", "rowwise", 12, 1, 0), (Ranges{{0, 12}}));
}

TEST(ShardRanges, CutEveryPackedBlockByItself) {
  EXPECT_EQ(shard_ranges("w", TensorParallelStyle::packed_rowwise({1, 4}), 40, 2, 0), (Ranges{{0, 4}, {8, 24}}));
  EXPECT_EQ(shard_ranges("w", TensorParallelStyle::packed_rowwise({1, 4}), 40, 2, 1), (Ranges{{4, 8}, {24, 40}}));
  // Absolute sizes are proportions of themselves.
  EXPECT_EQ(shard_ranges("w", TensorParallelStyle::packed_colwise({8, 4}), 12, 4, 3), (Ranges{{6, 8}, {11, 12}}));
}

TEST(ShardRanges, OfAllRanksCoverEverythingOnce) {
  const TensorParallelStyle styles[] = {"colwise", "rowwise", TensorParallelStyle::packed_colwise({1, 1, 1}),
                                        TensorParallelStyle::packed_rowwise({1, 2, 3})};
  for (const auto& style : styles) {
    for (const int ranks : {1, 2, 4}) {
      std::vector<int> covered(48, 0);
      for (int rank = 0; rank < ranks; ++rank) {
        for (const auto& [begin, end] : shard_ranges("w", style, 48, ranks, rank)) {
          for (auto i = begin; i < end; ++i) ++covered[i];
        }
      }
      EXPECT_EQ(covered, std::vector<int>(48, 1));
    }
  }
}

TEST(ShardRanges, HasAMessageForEveryRule) {
  using Style = TensorParallelStyle;
  expect_failure<ConfigError>([] { shard_ranges("a.w", "colwise", 10, 3, 0); },
                              {"'a.w'", "3 tensor-parallel ranks", "size 10", "dimension 0"});
  expect_failure<ConfigError>([] { shard_ranges("w", "rowwise", 10, 3, 0); }, {"size 10", "dimension 1"});
  expect_failure<ConfigError>([] { shard_ranges("w", Style::packed_colwise({}), 10, 2, 0); }, {"'w'", "no blocks"});
  expect_failure<ConfigError>([] { shard_ranges("w", Style::packed_colwise({1, 0}), 10, 2, 0); }, {"1, 0", "positive"});
  expect_failure<ConfigError>(
      [] {
        shard_ranges("w", Style::packed_rowwise({1, 2}), 10, 2, 0);
      },
      {"split 10", "1, 2", "sum 3"});
  expect_failure<ConfigError>(
      [] {
        shard_ranges("w", Style::packed_rowwise({1, 4}), 10, 4, 0);
      },
      {"size 2", "dimension 1", "by 4"});
}

}  // namespace
}  // namespace pardiff
