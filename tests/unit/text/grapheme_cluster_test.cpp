#include "text/grapheme_cluster.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pardiff {
namespace {

std::vector<std::string> clusters_of(const std::string& text) {
  std::vector<std::string> clusters;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end = cluster_end(text, begin);
    clusters.push_back(text.substr(begin, end - begin));
  }
  return clusters;
}

TEST(ClusterEnd, FollowsTheRulesOfTheStandard) {
  const std::vector<std::vector<std::string>> cases = {
      {"a", "b", "c"},
      {"a", "\r\n", "\n", "\r", "b"},
      {"a\u0301\u0302", "b", "\n", "\u0301"},
      {"\u1100\u1161\u11a8", "\uac00\u11a8\u11a8"},
      {"\u1100\u1100\uac01\u11a8", "\uac01", "\u1161\u1161\u11a8"},
      {"\U0001f1e9\U0001f1ea", "\U0001f1eb\U0001f1f7", "\U0001f1ec"},
      {"\U0001f469\u200d\U0001f469\ufe0f\u200d\U0001f467", "\U0001f467", "a\u200d", "\U0001f467"},
      {"\u0600a\u0301", "\u0600\u0600b", "c"},
      {"\u0915\u0903", "b"},
  };
  for (const auto& expected : cases) {
    std::string text;
    for (const auto& cluster : expected) text += cluster;
    EXPECT_EQ(clusters_of(text), expected) << text;
  }
}

TEST(ClusterEnd, KnowsWhatUnicode16And17Changed) {
  EXPECT_EQ(clusters_of("a\u0897b\u1acf"), (std::vector<std::string>{"a\u0897", "b\u1acf"}));
  EXPECT_EQ(clusters_of("\U000113d1a"), std::vector<std::string>{"\U000113d1a"});
  EXPECT_EQ(clusters_of("\U00011a3aa"), (std::vector<std::string>{"\U00011a3a", "a"}));
  // A black star is no pictograph any more, a black sun still is.
  EXPECT_EQ(clusters_of("\u2605\u200d\u2122"), (std::vector<std::string>{"\u2605\u200d", "\u2122"}));
  EXPECT_EQ(clusters_of("\u2600\u200d\u2122"), std::vector<std::string>{"\u2600\u200d\u2122"});
}

}  // namespace
}  // namespace pardiff
