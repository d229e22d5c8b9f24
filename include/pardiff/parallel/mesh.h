#pragma once
#include <string>
#include <utility>
#include <vector>

namespace pardiff {

/// Named axes over ranks, row-major, outermost first: index arithmetic, no communication. A rank's index along folded
/// axes counts through them in the same way, so their ranks need not be neighbours.
class Mesh {
 public:
  using Axes = std::vector<std::pair<std::string, int>>;

  /// Throws: ConfigError for an empty or repeated name, a size below 1, sizes whose product is not `size`, or a rank
  /// outside 0..size-1.
  Mesh(int rank, int size, Axes axes);

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Folded axes are one.
  Axes axes() const;
  bool has(const std::string& axis) const;
  /// Ranks along an axis; 1 if there is no such axis.
  int size(const std::string& axis) const;
  /// This rank's index along an axis; 0 if there is no such axis.
  int index(const std::string& axis) const;
  /// The ranks that differ from this one only along the given axes, in row-major order of those axes.
  std::vector<int> ranks_along(const std::vector<std::string>& axes) const;
  /// The same, seen from any rank.
  std::vector<int> ranks_along(const std::vector<std::string>& axes, int rank) const;
  /// The same ranks, with those along `axis` along `into` instead, which may be new.
  Mesh folded(const std::string& axis, const std::string& into) const;
  /// The same with an axis of one rank, unless there is one of that name.
  Mesh with_axis(const std::string& axis) const;
  /// "dp=2, ring=1, ulysses=4"
  std::string to_string() const;

  bool operator==(const Mesh&) const = default;

 private:
  // Along each of axes().
  std::vector<int> coordinates(int rank) const;

  int rank_, size_;
  Axes digits_;  // of a rank's number; those of folded axes have one name
};

}  // namespace pardiff
