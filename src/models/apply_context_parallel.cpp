#include <pardiff/attention/backend.h>
#include <pardiff/core/check.h>
#include <pardiff/models/apply.h>

#include <algorithm>
#include <map>
#include <set>

#include "models/module_tree.h"

namespace pardiff {
namespace {

// One edge that follows the plan.
struct PlannedModule {
  std::string path;
  nn::PlannedEdge* edge;
  const ModulePlan* plan;
};

nn::EdgeOwner* edge_owner(torch::nn::Module& module) {
  if (auto* own = dynamic_cast<nn::EdgeOwner*>(&module)) return own;
  for (const auto& child : module.named_children()) {
    if (auto* boundary = child.value()->as<BoundaryImpl>()) return boundary;
  }
  return nullptr;
}

void check_module_plan(const std::string& path, const ModulePlan& plan, const std::vector<std::string>& names) {
  const std::string what = path.empty() ? "the root" : "module '" + path + "'";
  check<ConfigError>(!plan.inputs().empty() || !plan.outputs().empty(), "the plan of ", what, " is empty.");
  for (const auto& [key, inputs] : plan.inputs()) {
    check<ConfigError>(key.is_index() || !key.name().empty(), "the plan of ", what,
                       " names an output by a negative index, or an argument without a name.");
    for (const auto& spec : inputs.specs()) {
      check<ConfigError>(spec.split_output == key.is_index(), "the plan of ", what,
                         key.is_index() ? " names an output by index without split_output."
                                        : " sets split_output for '" + key.name() + "'.",
                         " Inputs go by name, outputs by index with split_output.");
    }
    check<ConfigError>(
        names.empty() || key.is_index() || std::find(names.begin(), names.end(), key.name()) != names.end(),
        "the plan splits '", key.name(), "' of ", what, ", which has no such argument. It has: ", joined(names), ".");
  }
}

std::vector<PlannedModule> resolve(torch::nn::Module& root, const ContextParallelPlan& plan) {
  check<ConfigError>(!plan.empty(), "the context-parallel plan is empty: nothing would be split.");
  std::vector<PlannedModule> planned;
  std::map<const nn::EdgeOwner*, std::string> keys;  // that already plan an edge
  for (const auto& [key, module_plan] : plan) {
    for (const auto& [path, module] : find_modules(root, key)) {
      auto* owner = edge_owner(*module);
      check<ConfigError>(owner, "plan key '", key, "': module '", path.empty() ? module->name() : path,
                         "' has no Boundary, where a plan could split or gather. Register one in it.");
      const auto [first, is_new] = keys.emplace(owner, key);
      check<ConfigError>(is_new, "the plan treats '", path, "' twice, by its keys '", first->second, "' and '", key,
                         "'. Put what happens there under one key.");
      check_module_plan(path, module_plan, owner->argument_names());
      planned.push_back({path, &owner->edge(), &module_plan});
    }
  }
  return planned;
}

void check_attentions(torch::nn::Module& root, const AttentionMode& mode, at::DeviceType device) {
  const auto attentions = attentions_of(root);
  check<ConfigError>(!attentions.empty(), "'", root.name(),
                     "' has no pardiff::Attention: its tokens would not see those of other ranks.");
  const KernelNeeds needs{.device = device, .lse = mode.needs_lse()};
  for (const auto* attention : attentions) {
    check<ConfigError>(!attention->sharing(),
                       "parallelism is already applied to this model. Call disable_parallelism first.");
    const auto reason = attention_backend(attention->backend()).why_not(needs);
    check<ConfigError>(reason.empty(), "attention backend '", attention->backend(), "' cannot do mode '", mode.name,
                       "': ", reason, ". Choose one of: ", joined(backends_that_can(needs)), ".");
  }
}

// What a gather follows unless told otherwise: the first input that is split, or else the first output.
std::string first_split(const std::vector<PlannedModule>& planned) {
  std::string output;
  for (const auto& [path, edge, plan] : planned) {
    for (const auto& [key, inputs] : plan->inputs()) {
      if (!key.is_index()) return path + "." + key.name() + (inputs.is_list() ? ".0" : "");
      if (output.empty()) output = text_of(path, ".", key.index());
    }
  }
  return output;
}

std::string description(const ContextParallelConfig& config, const Mesh& mesh) {
  return text_of("ring ", config.ring(), ", ulysses ", config.ulysses(), ", rotate ", config.rotate_method,
                 ", convert_to_fp32 ", config.convert_to_fp32, ", ulysses_anything ", config.ulysses_anything,
                 ", ring_anything ", config.ring_anything, ", mesh ", mesh.to_string());
}

std::shared_ptr<AttentionSharing> make_sharing(const ContextParallelConfig& config, World& world, const Mesh& mesh) {
  auto sharing = std::make_shared<AttentionSharing>();
  sharing->mode = &attention_mode(config);
  sharing->ring = world.group_of(mesh.ranks_along({"ring"}));
  sharing->ulysses = world.group_of(mesh.ranks_along({"ulysses"}));
  sharing->device = world.device().type();
  sharing->rotate = config.rotate_method == "alltoall";
  sharing->convert_to_fp32 = config.convert_to_fp32;
  return sharing;
}

// Context ranks in (ring, ulysses) order, whatever the order of the axes in the mesh.
std::vector<int> context_ranks(const Mesh& mesh) {
  std::vector<int> ranks;
  for (const int start : mesh.ranks_along({"ring"})) {
    const auto row = mesh.ranks_along({"ulysses"}, start);
    ranks.insert(ranks.end(), row.begin(), row.end());
  }
  return ranks;
}

}  // namespace

void apply_context_parallel(torch::nn::Module& module, const ContextParallelConfig& config, World& world,
                            const ContextParallelPlan& plan) {
  const auto mesh = ParallelConfig{.context_parallel_config = config}.mesh(world.rank(), world.size());
  apply_context_parallel(module, config, world, mesh, plan);
}

void apply_context_parallel(torch::nn::Module& module, const ContextParallelConfig& config, World& world,
                            const Mesh& mesh, const ContextParallelPlan& plan) {
  config.validate();
  const auto& mode = attention_mode(config);
  const auto planned = resolve(module, plan);
  check_attentions(module, mode, world.device().type());
  if (config.ring() * config.ulysses() == 1) return;
  world.agree("the context-parallel configuration", description(config, mesh));

  const auto share = std::make_shared<nn::ContextShare>();
  share->group = world.group_of(context_ranks(mesh));
  share->length_any = mode.any_length;
  share->lifting_flag = mode.lifting_flag();
  share->first_input = first_split(planned);
  const auto sharing = make_sharing(config, world, mesh);

  for_each_module(module, [&](const FoundModule& found) {
    if (auto* owner = dynamic_cast<nn::EdgeOwner*>(found.module)) owner->edge().attach(found.path, share);
    if (auto* attention = found.module->as<AttentionImpl>()) attention->share(sharing);
  });
  for (const auto& [path, edge, module_plan] : planned) edge->follow(path, *module_plan, share);
}

void remove_context_parallel(torch::nn::Module& module) {
  for_each_module(module, [](const FoundModule& found) {
    if (auto* owner = dynamic_cast<nn::EdgeOwner*>(found.module)) owner->edge().release();
    if (auto* attention = found.module->as<AttentionImpl>()) attention->share(nullptr);
  });
}

void set_attention_backend(torch::nn::Module& module, const std::string& name) {
  const auto& backend = attention_backend(name);
  const auto attentions = attentions_of(module);
  const auto parameters = module.parameters();
  const KernelNeeds alone{.device = parameters.empty() ? at::kCPU : parameters.front().device().type()};
  for (const auto* attention : attentions) {
    if (!attention->sharing()) {
      const auto reason = backend.why_not(alone);
      check<ConfigError>(reason.empty(), "attention backend '", name, "' cannot serve a model on ",
                         c10::DeviceTypeName(alone.device, true), ": ", reason,
                         ". Choose one of: ", joined(backends_that_can(alone)), ".");
      continue;
    }
    const KernelNeeds needs{.device = attention->sharing()->device, .lse = attention->sharing()->mode->needs_lse()};
    const auto reason = backend.why_not(needs);
    check<ConfigError>(reason.empty(), "attention backend '", name, "' cannot do mode '",
                       attention->sharing()->mode->name, "', which this model uses: ", reason,
                       ". Choose one of: ", joined(backends_that_can(needs)), ".");
  }
  for (auto* attention : attentions) attention->set_backend(name);
}

int64_t peak_remote_kv_bytes(torch::nn::Module& module) {
  int64_t peak = 0;
  for (const auto* attention : attentions_of(module)) {
    if (attention->sharing()) peak = std::max(peak, attention->sharing()->meter->peak_bytes());
  }
  return peak;
}

namespace {

std::shared_ptr<nn::ContextShare> find_share(torch::nn::Module& module) {
  std::shared_ptr<nn::ContextShare> share;
  for_each_module(module, [&](const FoundModule& found) {
    auto* owner = dynamic_cast<nn::EdgeOwner*>(found.module);
    if (owner && !share) share = owner->edge().share();
  });
  return share;
}

}  // namespace

std::shared_ptr<const nn::ContextShare> context_share(torch::nn::Module& module) { return find_share(module); }

KeepSplit::KeepSplit(torch::nn::Module& module, std::map<std::string, SequenceLayout> layouts)
    : share_(find_share(module)) {
  check<ConfigError>(share_ != nullptr, "'", module.name(),
                     "' is not context parallel, so there is nothing to keep split. Call enable_parallelism first.");
  share_->keep_split = true;
  share_->kept = std::move(layouts);
}

KeepSplit::~KeepSplit() {
  share_->keep_split = false;
  share_->kept.clear();
}

}  // namespace pardiff
