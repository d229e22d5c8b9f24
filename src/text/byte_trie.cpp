#include "text/byte_trie.h"

#include <algorithm>
#include <deque>

namespace pardiff {
namespace {

// The entries that share a node's prefix; entries are sorted, so they are neighbours.
struct Span {
  std::size_t node, begin, end, depth;
};

}  // namespace

ByteTrie::ByteTrie(std::vector<std::pair<std::string, int32_t>> entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  branches_.emplace_back();
  std::deque<Span> open = {{0, 0, entries.size(), 0}};
  while (!open.empty()) {
    auto [node, begin, end, depth] = open.front();
    open.pop_front();
    for (; begin < end && entries[begin].first.size() == depth; ++begin) branches_[node].value = entries[begin].second;
    branches_[node].first_child = static_cast<int32_t>(branches_.size());
    while (begin < end) {
      const char label = entries[begin].first[depth];
      std::size_t same = begin;
      while (same < end && entries[same].first[depth] == label) ++same;
      open.push_back({branches_.size(), begin, same, depth + 1});
      branches_.emplace_back();
      branches_.back().label = static_cast<unsigned char>(label);
      begin = same;
    }
    branches_[node].end_child = static_cast<int32_t>(branches_.size());
  }
  first_step_.fill(kNowhere);
  for (Node child = branches_[0].first_child; child < branches_[0].end_child; ++child) {
    first_step_[branches_[static_cast<std::size_t>(child)].label] = child;
  }
}

}  // namespace pardiff
