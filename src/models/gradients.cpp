#include <ATen/ATen.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/models/gradients.h>
#include <pardiff/models/model.h>

#include <algorithm>
#include <set>

#include "models/module_tree.h"
#include "models/weight_shards.h"

namespace pardiff {
namespace {

struct Trained {
  std::string name;
  at::Tensor parameter;
  bool on_local_heads = false;
};

// In the order of registration, which is that of every rank. A parameter with two names comes once.
std::vector<Trained> trained_parameters(torch::nn::Module& module, const std::vector<std::string>& on_local_heads) {
  const auto partial = parameters_at(module, on_local_heads);
  std::set<const at::TensorImpl*> seen;
  std::vector<Trained> trained;
  for (const auto& item : module.named_parameters()) {
    const auto* identity = item.value().unsafeGetTensorImpl();
    if (!item.value().requires_grad() || !seen.insert(identity).second) continue;
    trained.push_back({item.key(), item.value(), partial.contains(identity)});
  }
  return trained;
}

// The same of a model whose weights are sharded: its parameters have no gradients, its parts do.
std::vector<Trained> trained_parts(const WeightShards& shards) {
  std::vector<Trained> trained;
  for (const auto& part : shards.parts()) {
    if (part.requires_grad()) trained.push_back({"part", part, shards.is_on_local_heads(part)});
  }
  return trained;
}

// FNV-1a: the same on every host, which std::hash does not promise.
int64_t digest(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return static_cast<int64_t>(hash);
}

std::string description(const std::vector<Trained>& trained, const GradientReduction& options) {
  std::string text = text_of("bucket_bytes ", options.bucket_bytes, ";");
  for (const auto& [name, parameter, on_local_heads] : trained) {
    text += text_of(name, " ", parameter.scalar_type(), parameter.sizes(), on_local_heads, ";");
  }
  return text;
}

std::string presence(const std::vector<Trained>& trained) {
  std::string flags;
  for (const auto& item : trained) flags.push_back(item.parameter.grad().defined() ? '1' : '0');
  return flags;
}

at::TensorOptions numbers_on(const World& world) { return at::TensorOptions().dtype(at::kLong).device(world.device()); }

// Zeros where another rank has a gradient and this one has none.
void fill_absent(const std::vector<Trained>& trained, const ProcessGroup& group, const World& world) {
  std::vector<int64_t> flags;
  for (const auto& item : trained) flags.push_back(item.parameter.grad().defined() ? 1 : 0);
  const auto ranks = at::tensor(flags, at::kLong).to(world.device());
  all_reduce(ranks, group).wait();
  const auto counts = ranks.to(at::kCPU);
  for (size_t i = 0; i < trained.size(); ++i) {
    const auto& parameter = trained[i].parameter;
    if (counts[static_cast<int64_t>(i)].item<int64_t>() == 0 || parameter.grad().defined()) continue;
    parameter.mutable_grad() = at::zeros_like(parameter, at::MemoryFormat::Contiguous);
  }
}

// Compares what is trained, then which of it has gradients, among all ranks of the reduction.
void agree(const std::vector<Trained>& trained, const GradientReduction& options, const std::vector<int>& ranks,
           const ProcessGroup& group, const World& world) {
  const auto own = at::tensor({digest(description(trained, options)), digest(presence(trained))}, at::kLong);
  const auto all = at::empty({2 * group.size()}, numbers_on(world));
  all_gather(all, own.to(world.device()), std::vector<int64_t>(group.size(), 2), group).wait();
  const auto digests = all.to(at::kCPU).view({-1, 2});
  const auto differ = digests.ne(digests[0]);
  std::vector<int> others;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (differ[rank][0].item<bool>()) others.push_back(ranks[rank]);
  }
  check<CommError>(
      others.empty(), "rank ", joined(others), " trains other parameters than rank ", ranks[0],
      " (names, shapes, dtypes, requires_grad and bucket_bytes are compared). Make the models, and what is "
      "frozen in them, equal on every rank.");
  if (differ.any().item<bool>()) fill_absent(trained, group, world);
}

at::ScalarType sum_dtype(const at::Tensor& gradient) {
  return at::isReducedFloatingType(gradient.scalar_type()) ? at::kFloat : gradient.scalar_type();
}

void reduce_bucket(const std::vector<at::Tensor>& bucket, const ProcessGroup& group, int replicas) {
  std::vector<at::Tensor> flat;
  for (const auto& gradient : bucket) flat.push_back(gradient.reshape({-1}).to(sum_dtype(gradient)));
  const auto sum = at::cat(flat);
  flat.clear();
  if (replicas > 1) sum.div_(replicas);  // first, so that the sum of many large ones does not overflow
  all_reduce(sum, group).wait();
  int64_t start = 0;
  for (const auto& gradient : bucket) {
    gradient.copy_(sum.narrow(0, start, gradient.numel()).view(gradient.sizes()));
    start += gradient.numel();
  }
}

void reduce(const std::vector<at::Tensor>& gradients, const ProcessGroup& group, int replicas, int64_t bucket_bytes) {
  if (group.size() == 1) {
    for (const auto& gradient : gradients)
      gradient.div_(replicas);  // summed already, by the backward of sharded weights
    return;
  }
  std::vector<at::Tensor> bucket;
  int64_t bytes = 0;
  const auto flush = [&] {
    if (!bucket.empty()) reduce_bucket(bucket, group, replicas);
    bucket.clear();
    bytes = 0;
  };
  for (const auto& gradient : gradients) {
    const auto dtype = sum_dtype(gradient);
    const int64_t own = gradient.numel() * static_cast<int64_t>(c10::elementSize(dtype));
    if (!bucket.empty() && (bytes + own > bucket_bytes || dtype != sum_dtype(bucket.front()))) flush();
    bucket.push_back(gradient);
    bytes += own;
  }
  flush();
}

void check_axes(const Mesh& mesh) {
  check<ConfigError>(mesh.size("cfg") == 1, "the mesh (", mesh.to_string(), ") has ", mesh.size("cfg"),
                     " ranks along cfg, whose two passes of guidance are for inference only. Train without cfg_degree; "
                     "dp_degree puts different data on different ranks.");
}

// `summed_over`: axes over which backward has added up the gradients already.
void reduce(const std::vector<Trained>& trained, World& world, const Mesh& mesh, const GradientReduction& options,
            const std::vector<std::string>& summed_over = {}) {
  std::vector<std::string> shared;
  for (const auto* axis : {"dp", "fsdp", "ring", "ulysses"}) {
    if (std::find(summed_over.begin(), summed_over.end(), axis) == summed_over.end()) shared.emplace_back(axis);
  }
  auto with_tensor = shared;
  with_tensor.emplace_back("tp");
  const auto ranks = mesh.ranks_along(with_tensor);
  const auto everyone = world.group_of(ranks), all_but_tensor = world.group_of(mesh.ranks_along(shared));
  agree(trained, options, ranks, everyone, world);

  std::vector<at::Tensor> complete, partial;  // over the tp ranks
  for (const auto& item : trained) {
    if (!item.parameter.grad().defined()) continue;
    (item.on_local_heads ? partial : complete).push_back(item.parameter.grad());
  }
  const int replicas = mesh.size("dp") * mesh.size("fsdp");
  reduce(complete, all_but_tensor, replicas, options.bucket_bytes);
  reduce(partial, everyone, replicas, options.bucket_bytes);
}

}  // namespace

void reduce_gradients(Model& model) {
  if (!model.is_parallel()) return;
  const GradientReduction options{.on_local_heads = model.modules_on_local_heads()};
  if (!model.weight_shards()) return reduce_gradients(model, *model.world(), *model.mesh(), options);
  check_axes(*model.mesh());
  const at::NoGradGuard no_grad;
  reduce(trained_parts(*model.weight_shards()), *model.world(), *model.mesh(), options,
         model.parallel_config()->weight_axes());
}

void reduce_gradients(torch::nn::Module& module, World& world, const Mesh& mesh, const GradientReduction& options) {
  check_axes(mesh);
  const at::NoGradGuard no_grad;
  reduce(trained_parameters(module, options.on_local_heads), world, mesh, options);
}

}  // namespace pardiff
