#pragma once
#include <pardiff/attention/attention.h>
#include <pardiff/nn/boundary.h>
#include <pardiff/nn/linear.h>
#include <torch/nn/module.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace pardiff {

struct FoundModule {
  std::string path;  // "" is the root
  torch::nn::Module* module = nullptr;
};

/// The modules that a plan's key names; one `*` stands for the entries of a ModuleList.
/// Throws: ConfigError that lists the valid names where the path leaves the tree.
std::vector<FoundModule> find_modules(torch::nn::Module& root, const std::string& key);
/// Every module below and including `root`, depth first.
void for_each_module(torch::nn::Module& root, const std::function<void(const FoundModule&)>& visit);
/// Every attention below `root`.
std::vector<AttentionImpl*> attentions_of(torch::nn::Module& root);
/// The parameters of the modules that the keys name, by identity. Throws: ConfigError, as find_modules.
std::set<const at::TensorImpl*> parameters_at(torch::nn::Module& root, const std::vector<std::string>& keys);
/// "a.b" + "c" -> "a.b.c"
std::string joined_path(const std::string& path, const std::string& name);

}  // namespace pardiff
