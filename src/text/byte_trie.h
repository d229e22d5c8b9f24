#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pardiff {

/// Strings with a value each, found by walking a text byte by byte.
class ByteTrie {
 public:
  /// Where a walk stands.
  using Node = int32_t;
  static constexpr Node kRoot = 0, kNowhere = -1;

  ByteTrie() : ByteTrie(std::vector<std::pair<std::string, int32_t>>{}) {}
  /// Values must not be negative; of equal strings the last one counts.
  explicit ByteTrie(std::vector<std::pair<std::string, int32_t>> entries);

  /// Where the walk stands after one more byte: kNowhere if no string starts like this.
  Node step(Node node, char byte) const {
    const auto label = static_cast<unsigned char>(byte);
    if (node == kRoot) return first_step_[label];
    const Branch& branch = branches_[static_cast<std::size_t>(node)];
    for (int32_t child = branch.first_child; child < branch.end_child; ++child) {
      if (branches_[static_cast<std::size_t>(child)].label == label) return child;
    }
    return kNowhere;
  }
  /// The value of the string that ends here, or -1.
  int32_t value(Node node) const { return branches_[static_cast<std::size_t>(node)].value; }

 private:
  // The children of a node lie side by side.
  struct Branch {
    int32_t first_child = 0, end_child = 0, value = -1;
    unsigned char label = 0;
  };
  std::vector<Branch> branches_;
  std::array<Node, 256> first_step_;
};

}  // namespace pardiff
