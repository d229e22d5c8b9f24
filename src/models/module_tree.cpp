#include "models/module_tree.h"

#include <pardiff/core/check.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>

namespace pardiff {
namespace {

std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> names;
  for (size_t start = 0; start <= path.size() && !path.empty();) {
    const size_t dot = std::min(path.find('.', start), path.size());
    names.push_back(path.substr(start, dot - start));
    start = dot + 1;
  }
  return names;
}

void find_below(torch::nn::Module& module, const std::string& path, const std::vector<std::string>& names, size_t next,
                const std::string& key, std::vector<FoundModule>& found) {
  if (next == names.size()) {
    found.push_back({path, &module});
    return;
  }
  const auto children = module.named_children();
  if (names[next] == "*") {
    check<ConfigError>(module.as<torch::nn::ModuleListImpl>() != nullptr, "plan key '", key, "': '", path,
                       "' is no ModuleList, and '*' stands for the entries of one.");
    for (const auto& child : children) {
      find_below(*child.value(), joined_path(path, child.key()), names, next + 1, key, found);
    }
    return;
  }
  const auto* child = children.find(names[next]);
  std::vector<std::string> valid = children.keys();
  std::sort(valid.begin(), valid.end());
  check<ConfigError>(child, "plan key '", key, "': '", names[next], "' is not a submodule of '",
                     path.empty() ? module.name() : path, "'. It has: ", joined(valid), ".");
  find_below(**child, joined_path(path, names[next]), names, next + 1, key, found);
}

void visit_below(torch::nn::Module& module, const std::string& path,
                 const std::function<void(const FoundModule&)>& visit) {
  visit({path, &module});
  for (const auto& child : module.named_children()) visit_below(*child.value(), joined_path(path, child.key()), visit);
}

}  // namespace

std::string joined_path(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

std::vector<FoundModule> find_modules(torch::nn::Module& root, const std::string& key) {
  check<ConfigError>(std::count(key.begin(), key.end(), '*') <= 1, "plan key '", key,
                     "' has more than one '*'. Use at most one.");
  std::vector<FoundModule> found;
  find_below(root, "", split_path(key), 0, key, found);
  return found;
}

void for_each_module(torch::nn::Module& root, const std::function<void(const FoundModule&)>& visit) {
  visit_below(root, "", visit);
}

std::vector<AttentionImpl*> attentions_of(torch::nn::Module& root) {
  std::vector<AttentionImpl*> attentions;
  for_each_module(root, [&](const FoundModule& found) {
    if (auto* attention = found.module->as<AttentionImpl>()) attentions.push_back(attention);
  });
  return attentions;
}

std::set<const at::TensorImpl*> parameters_at(torch::nn::Module& root, const std::vector<std::string>& keys) {
  std::set<const at::TensorImpl*> parameters;
  for (const auto& key : keys) {
    for (const auto& found : find_modules(root, key)) {
      for (const auto& parameter : found.module->parameters()) parameters.insert(parameter.unsafeGetTensorImpl());
    }
  }
  return parameters;
}

}  // namespace pardiff
