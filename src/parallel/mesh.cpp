#include <pardiff/core/check.h>
#include <pardiff/parallel/mesh.h>

#include <set>

namespace pardiff {

Mesh::Mesh(int rank, int size, Axes axes) : rank_(rank), size_(size), axes_(std::move(axes)) {
  std::set<std::string> names;
  int64_t product = 1;
  for (const auto& [name, length] : axes_) {
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

bool Mesh::has(const std::string& axis) const {
  for (const auto& [name, length] : axes_) {
    if (name == axis) return true;
  }
  return false;
}

int Mesh::size(const std::string& axis) const {
  for (const auto& [name, length] : axes_) {
    if (name == axis) return length;
  }
  return 1;
}

std::vector<int> Mesh::coordinates(int rank) const {
  std::vector<int> index(axes_.size());
  for (size_t axis = axes_.size(); axis-- > 0;) {
    index[axis] = rank % axes_[axis].second;
    rank /= axes_[axis].second;
  }
  return index;
}

int Mesh::index(const std::string& axis) const {
  const auto own = coordinates(rank_);
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].first == axis) return own[i];
  }
  return 0;
}

std::vector<int> Mesh::ranks_along(const std::vector<std::string>& axes) const { return ranks_along(axes, rank_); }

std::vector<int> Mesh::ranks_along(const std::vector<std::string>& axes, int rank) const {
  const std::set<std::string> free(axes.begin(), axes.end());
  const auto own = coordinates(rank);
  std::vector<int> ranks;
  for (int other = 0; other < size_; ++other) {
    const auto index = coordinates(other);
    bool differs_elsewhere = false;
    for (size_t i = 0; i < axes_.size(); ++i) {
      if (!free.count(axes_[i].first) && index[i] != own[i]) differs_elsewhere = true;
    }
    if (!differs_elsewhere) ranks.push_back(other);
  }
  return ranks;
}

std::string Mesh::to_string() const {
  std::vector<std::string> texts;
  for (const auto& [name, length] : axes_) texts.push_back(text_of(name, "=", length));
  return joined(texts);
}

}  // namespace pardiff
