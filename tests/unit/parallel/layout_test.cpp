#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/parallel/layout.h>

#include <set>

#include "support/failure.h"

namespace pardiff {
namespace {

using Spans = std::vector<SequenceSpan>;
using testing::expect_failure;

TEST(SequenceLayout, GivesTheFirstRanksOneTokenMore) {
  const auto layout = SequenceLayout::split(10, 4);
  EXPECT_EQ(layout.to_string(), "3+3+2+2");
  EXPECT_EQ(layout.length(), 10);
  EXPECT_EQ(layout.spans(2), (Spans{{6, 2}}));
  EXPECT_FALSE(layout.is_even());
  EXPECT_TRUE(SequenceLayout::split(8, 4).is_even());
}

TEST(SequenceLayout, EveryTokenHasExactlyOneRankInOrder) {
  for (int64_t length = 0; length <= 25; ++length) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      const auto layout = SequenceLayout::split(length, ranks);
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto span = layout.spans(rank).at(0);
        EXPECT_EQ(span.start, next);
        EXPECT_EQ(span.length, length / ranks + (rank < length % ranks ? 1 : 0));
        EXPECT_EQ(span.length, layout.local_length(rank));
        EXPECT_EQ(span, even_share(length, ranks, rank));
        next += span.length;
      }
      EXPECT_EQ(next, length);
    }
  }
}

TEST(SequenceLayout, JointKeepsTextBeforeImageInGlobalPositions) {
  const auto joint = SequenceLayout::joint(SequenceLayout::split(3, 2), SequenceLayout::split(5, 2));
  EXPECT_EQ(joint.to_string(), "2+1 | 3+2");
  EXPECT_EQ(joint.length(), 8);
  EXPECT_EQ(joint.local_length(0), 5);
  EXPECT_EQ(joint.spans(0), (Spans{{0, 2}, {3, 3}}));
  EXPECT_EQ(joint.spans(1), (Spans{{2, 1}, {6, 2}}));
}

TEST(SequenceLayout, EmptySharesKeepTheirSpans) {
  const auto joint = SequenceLayout::joint(SequenceLayout::split(0, 3), SequenceLayout::split(2, 3));
  EXPECT_EQ(joint.spans(2), (Spans{{0, 0}, {2, 0}}));
  EXPECT_EQ(joint.local_length(2), 0);
  EXPECT_FALSE(joint.is_even());
}

TEST(SequenceLayout, AWholeTensorHasNoLength) {
  const SequenceLayout whole;
  EXPECT_TRUE(whole.is_whole());
  EXPECT_EQ(whole.ranks(), 1);
  EXPECT_EQ(whole.to_string(), "whole");
  EXPECT_TRUE(SequenceLayout::joint({}, {}).is_whole());
  EXPECT_NE(whole, SequenceLayout::split(4, 1));
  expect_failure<ShapeError>([&] { whole.length(); }, {"carries no length"});
}

TEST(SequenceLayout, EvenMeansEverySegmentIs) {
  const auto uneven = SequenceLayout::joint(SequenceLayout::of_lengths({2, 1}), SequenceLayout::of_lengths({1, 2}));
  EXPECT_EQ(uneven.local_length(0), uneven.local_length(1));
  EXPECT_FALSE(uneven.is_even());
}

TEST(SequenceLayout, HasAMessageForEveryRule) {
  const auto two = SequenceLayout::split(4, 2), three = SequenceLayout::split(4, 3);
  std::set<std::string> messages = {
      expect_failure<ShapeError>([] { SequenceLayout::split(-1, 2); }, {"-1 tokens among 2"}),
      expect_failure<ShapeError>([] { SequenceLayout::split(1, 0); }, {"1 tokens among 0"}),
      expect_failure<ShapeError>([] { SequenceLayout::of_lengths({}); }, {"at least one rank"}),
      expect_failure<ShapeError>(
          [] {
            SequenceLayout::of_lengths({1, -2});
          },
          {"-2 tokens"}),
      expect_failure<ConfigError>([&] { SequenceLayout::joint(two, {}); }, {"split and a whole", "Split both"}),
      expect_failure<ConfigError>([&] { SequenceLayout::joint(two, three); }, {"among 2 and 3 ranks"}),
      expect_failure<ShapeError>([&] { two.local_length(2); }, {"rank 2", "layout of 2"})};
  EXPECT_EQ(messages.size(), 7u);
  expect_failure<ConfigError>([&] { SequenceLayout::joint({}, two); }, {"split and a whole"});
  expect_failure<ShapeError>([&] { two.spans(2); }, {"rank 2"});
}

}  // namespace
}  // namespace pardiff
