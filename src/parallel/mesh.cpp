#include <pardiff/core/check.h>
#include <pardiff/parallel/mesh.h>

#include <algorithm>
#include <cstdint>
#include <set>

namespace pardiff {

Mesh::Mesh(int rank, int size, Axes axes) : rank_(rank), size_(size), digits_(std::move(axes)) {
  std::set<std::string> names;
  int64_t product = 1;
  for (const auto& [name, length] : digits_) {
    check<ConfigError>(!name.empty(), "a mesh axis has no name (", to_string(), "). Name every axis.");
    check<ConfigError>(names.insert(name).second, "mesh axis '", name, "' occurs twice (", to_string(), ").");
    check<ConfigError>(length >= 1, "mesh axis '", name, "' has size ", length, ". Sizes start at 1.");
    product *= length;
    check<ConfigError>(product <= size, "the mesh (", to_string(), ") has more than the ", size,
                       " ranks of the world.");
  }
  check<ConfigError>(product == size, "the mesh (", to_string(), ") has ", product, " ranks, and the world has ", size,
                     ". Their numbers must be equal.");
  check<ConfigError>(rank >= 0 && rank < size, "rank ", rank, " is outside a world of ", size, ".");
}

Mesh::Axes Mesh::axes() const {
  Axes axes;
  for (const auto& [name, length] : digits_) {
    const auto known = std::find_if(axes.begin(), axes.end(), [&](const auto& axis) { return axis.first == name; });
    if (known == axes.end()) {
      axes.emplace_back(name, length);
    } else {
      known->second *= length;
    }
  }
  return axes;
}

bool Mesh::has(const std::string& axis) const {
  return std::any_of(digits_.begin(), digits_.end(), [&](const auto& digit) { return digit.first == axis; });
}

int Mesh::size(const std::string& axis) const {
  int product = 1;
  for (const auto& [name, length] : digits_) {
    if (name == axis) product *= length;
  }
  return product;
}

std::vector<int> Mesh::coordinates(int rank) const {
  const auto all = axes();
  std::vector<int> index(all.size(), 0);
  int left = size_;  // ranks that differ from this one in the digits not yet seen
  for (const auto& [name, length] : digits_) {
    left /= length;
    const auto axis = std::find_if(all.begin(), all.end(), [&](const auto& any) { return any.first == name; });
    auto& place = index[static_cast<size_t>(axis - all.begin())];
    place = place * length + rank / left % length;
  }
  return index;
}

int Mesh::index(const std::string& axis) const {
  const auto all = axes();
  const auto own = coordinates(rank_);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].first == axis) return own[i];
  }
  return 0;
}

Mesh Mesh::folded(const std::string& axis, const std::string& into) const {
  auto result = *this;
  for (auto& [name, length] : result.digits_) {
    if (name == axis) name = into;
  }
  return result;
}

Mesh Mesh::with_axis(const std::string& axis) const {
  auto result = *this;
  if (!has(axis)) result.digits_.emplace_back(axis, 1);
  return result;
}

std::vector<int> Mesh::ranks_along(const std::vector<std::string>& axes) const { return ranks_along(axes, rank_); }

std::vector<int> Mesh::ranks_along(const std::vector<std::string>& axes, int rank) const {
  const std::set<std::string> free(axes.begin(), axes.end());
  const auto all = this->axes();
  const auto own = coordinates(rank);
  std::vector<std::pair<std::vector<int>, int>> found;  // coordinates and rank
  for (int other = 0; other < size_; ++other) {
    auto index = coordinates(other);
    bool differs_elsewhere = false;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!free.count(all[i].first) && index[i] != own[i]) differs_elsewhere = true;
    }
    if (!differs_elsewhere) found.emplace_back(std::move(index), other);
  }
  std::sort(found.begin(), found.end());
  std::vector<int> ranks;
  for (const auto& [index, other] : found) ranks.push_back(other);
  return ranks;
}

std::string Mesh::to_string() const {
  std::vector<std::string> texts;
  for (const auto& [name, length] : axes()) texts.push_back(text_of(name, "=", length));
  return joined(texts);
}

}  // namespace pardiff
