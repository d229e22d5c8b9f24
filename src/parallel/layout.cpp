#include <pardiff/core/check.h>
#include <pardiff/parallel/layout.h>

#include <algorithm>
#include <numeric>

namespace pardiff {

SequenceSpan even_share(int64_t count, int ranks, int rank) {
  const int64_t base = count / ranks, rest = count % ranks;
  return {rank * base + std::min<int64_t>(rank, rest), base + (rank < rest ? 1 : 0)};
}

SequenceLayout SequenceLayout::split(int64_t length, int ranks) {
  check<ShapeError>(length >= 0 && ranks >= 1, "cannot split ", length, " tokens among ", ranks, " ranks");
  std::vector<int64_t> lengths(ranks);
  for (int rank = 0; rank < ranks; ++rank) lengths[rank] = even_share(length, ranks, rank).length;
  return of_lengths(lengths);
}

SequenceLayout SequenceLayout::of_lengths(const std::vector<int64_t>& lengths) {
  check<ShapeError>(!lengths.empty(), "a layout needs at least one rank");
  for (const auto length : lengths) check<ShapeError>(length >= 0, "a share cannot have ", length, " tokens");
  SequenceLayout layout;
  layout.segments_.push_back(lengths);
  return layout;
}

SequenceLayout SequenceLayout::joint(const SequenceLayout& first, const SequenceLayout& second) {
  if (first.is_whole() && second.is_whole()) return {};
  check<ConfigError>(!first.is_whole() && !second.is_whole(),
                     "joint attention of a split and a whole tensor: the whole one's tokens would count once per rank. "
                     "Split both in the plan.");
  check<ConfigError>(first.ranks() == second.ranks(), "joint attention of tensors split among ", first.ranks(), " and ",
                     second.ranks(), " ranks. Split both among the same ranks.");
  SequenceLayout layout = first;
  layout.segments_.insert(layout.segments_.end(), second.segments_.begin(), second.segments_.end());
  return layout;
}

int SequenceLayout::ranks() const { return is_whole() ? 1 : static_cast<int>(segments_.front().size()); }

int64_t SequenceLayout::length() const {
  check<ShapeError>(!is_whole(), "a whole tensor's layout carries no length");
  int64_t sum = 0;
  for (const auto& segment : segments_) sum = std::accumulate(segment.begin(), segment.end(), sum);
  return sum;
}

int64_t SequenceLayout::local_length(int rank) const {
  check<ShapeError>(!is_whole() && rank >= 0 && rank < ranks(), "no share of rank ", rank, " in a layout of ", ranks());
  int64_t sum = 0;
  for (const auto& segment : segments_) sum += segment[rank];
  return sum;
}

std::vector<SequenceSpan> SequenceLayout::spans(int rank) const {
  check<ShapeError>(!is_whole() && rank >= 0 && rank < ranks(), "no share of rank ", rank, " in a layout of ", ranks());
  std::vector<SequenceSpan> spans;
  int64_t segment_start = 0;
  for (const auto& segment : segments_) {
    spans.push_back({std::accumulate(segment.begin(), segment.begin() + rank, segment_start), segment[rank]});
    segment_start = std::accumulate(segment.begin(), segment.end(), segment_start);
  }
  return spans;
}

bool SequenceLayout::is_even() const {
  return std::all_of(segments_.begin(), segments_.end(), [](const auto& segment) {
    return std::all_of(segment.begin(), segment.end(), [&](int64_t length) { return length == segment.front(); });
  });
}

std::string SequenceLayout::to_string() const {
  if (is_whole()) return "whole";
  std::vector<std::string> texts;
  for (const auto& segment : segments_) texts.push_back(joined(segment, "+"));
  return joined(texts, " | ");
}

}  // namespace pardiff
