#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace pardiff {

/// Neighbouring positions [start, start + length) of a global sequence.
struct SequenceSpan {
  int64_t start = 0;
  int64_t length = 0;
  bool operator==(const SequenceSpan&) const = default;
};

/// How the tokens of one tensor are shared among the ranks of a context-parallel group (the flattened ring x ulysses
/// mesh).
///
/// A layout has one or more segments (joint attention has text, then image). Each segment is cut into contiguous shares
/// in rank order; a rank's local sequence is its share of the first segment, then of the second, and so on. A share may
/// be empty. Every rank knows every share, so no size is ever asked of another rank or read off a local tensor. A
/// layout without segments means that every rank holds the whole tensor.
class SequenceLayout {
 public:
  SequenceLayout() = default;

  /// Even as far as possible: the first `length` mod `ranks` ranks get one token more.
  /// Throws: ShapeError for a negative length or fewer than one rank.
  static SequenceLayout split(int64_t length, int ranks);
  /// Shares of the given lengths, rank 0's first.
  static SequenceLayout of_lengths(const std::vector<int64_t>& lengths);
  /// The layout of the concatenation of two tensors that are each split.
  /// Throws: ConfigError if one is split and the other whole: its tokens would count once per rank.
  static SequenceLayout joint(const SequenceLayout& first, const SequenceLayout& second);

  /// True if every rank holds the whole tensor.
  bool is_whole() const { return segments_.empty(); }
  /// Ranks that share the tensor; 1 if it is whole.
  int ranks() const;
  /// Tokens of all ranks together. Throws: ShapeError if the layout is whole: it carries no length.
  int64_t length() const;
  /// Tokens of one rank.
  int64_t local_length(int rank) const;
  /// The global positions of a rank's tokens in the order of its local tensor, one span per segment (empty ones too).
  std::vector<SequenceSpan> spans(int rank) const;
  /// True if every rank has the same number of tokens of every segment.
  bool is_even() const;
  /// "text 3+2, image 4+4" without the names: "3+2 | 4+4".
  std::string to_string() const;

  bool operator==(const SequenceLayout&) const = default;

 private:
  std::vector<std::vector<int64_t>> segments_;  // [segment][rank] -> tokens
};

/// The share of `rank` when `count` things are dealt in order and the first `count` mod `ranks` ranks get one more.
SequenceSpan even_share(int64_t count, int ranks, int rank);

}  // namespace pardiff
