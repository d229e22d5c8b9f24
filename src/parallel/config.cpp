#include <pardiff/core/check.h>
#include <pardiff/parallel/config.h>

#include <algorithm>
#include <set>

namespace pardiff {
namespace {

const std::vector<std::string>& axis_names() {
  static const std::vector<std::string> names = {"dp", "fsdp", "cfg", "ring", "ulysses", "tp"};
  return names;
}

void check_axis(const Mesh& mesh, const std::string& axis, int degree) {
  check<ConfigError>(mesh.size(axis) == degree, axis, "_degree is ", degree, ", and the mesh (", mesh.to_string(),
                     ") has ", mesh.size(axis), " ranks along '", axis, "'. Make them equal.");
}

}  // namespace

void ContextParallelConfig::validate() const {
  check<ConfigError>(
      ring_degree || ulysses_degree,
      "neither ring_degree nor ulysses_degree is given. Give the number of ranks that share the sequence.");
  check<ConfigError>(ring() >= 1, "ring_degree is ", ring(), ". It starts at 1.");
  check<ConfigError>(ulysses() >= 1, "ulysses_degree is ", ulysses(), ". It starts at 1.");
  check<ConfigError>(rotate_method == "alltoall" || rotate_method == "allgather", "unknown rotate_method '",
                     rotate_method, "'. Use alltoall or allgather.");
  check<ConfigError>(!ulysses_anything || ulysses() > 1, "ulysses_anything is set, and ulysses_degree is ", ulysses(),
                     ". Give a ulysses_degree above 1, or leave the flag off.");
  check<ConfigError>(!ring_anything || ring() > 1, "ring_anything is set, and ring_degree is ", ring(),
                     ". Give a ring_degree above 1, or leave the flag off.");
  if (!mesh) return;
  check<ConfigError>(mesh->has("ring") && mesh->has("ulysses"), "the mesh (", mesh->to_string(),
                     ") has no axes named ring and ulysses. Name them, with size 1 where there is one rank.");
  check_axis(*mesh, "ring", ring());
  check_axis(*mesh, "ulysses", ulysses());
}

void TensorParallelConfig::validate() const {
  check<ConfigError>(tp_degree >= 1, "tp_degree is ", tp_degree, ". It starts at 1.");
  if (!mesh) return;
  check<ConfigError>(mesh->has("tp"), "the mesh (", mesh->to_string(), ") has no axis named tp.");
  check<ConfigError>(tp_degree == 1 || tp_degree == mesh->size("tp"), "tp_degree is ", tp_degree, ", and the mesh (",
                     mesh->to_string(), ") has ", mesh->size("tp"),
                     " ranks along 'tp'. Make them equal, or leave tp_degree out.");
}

int ParallelConfig::ranks() const {
  int product = dp_degree * fsdp_degree * cfg_degree;
  if (context_parallel_config) product *= context_parallel_config->ring() * context_parallel_config->ulysses();
  if (tensor_parallel_config) product *= tensor_parallel_config->degree();
  return product;
}

std::vector<std::string> ParallelConfig::weight_axes() const {
  auto axes = shard_weights_over;
  if (fsdp_degree > 1 && std::find(axes.begin(), axes.end(), "fsdp") == axes.end()) axes.emplace_back("fsdp");
  return axes;
}

void ParallelConfig::validate() const {
  if (context_parallel_config) context_parallel_config->validate();
  if (tensor_parallel_config) tensor_parallel_config->validate();
  check<ConfigError>(cfg_degree == 1 || cfg_degree == 2, "cfg_degree is ", cfg_degree,
                     ". There are two passes: use 1 or 2.");
  check<ConfigError>(dp_degree >= 1, "dp_degree is ", dp_degree, ". It starts at 1.");
  check<ConfigError>(fsdp_degree >= 1, "fsdp_degree is ", fsdp_degree, ". It starts at 1.");
  std::set<std::string> seen;
  for (const auto& axis : shard_weights_over) {
    const auto& names = axis_names();
    check<ConfigError>(std::find(names.begin(), names.end(), axis) != names.end() && axis != "tp",
                       "shard_weights_over names '", axis,
                       "' (--shard-weights-over). Use axes of dp, fsdp, cfg, ring, ulysses.");
    check<ConfigError>(seen.insert(axis).second, "shard_weights_over names '", axis,
                       "' twice (--shard-weights-over). Name each axis once.");
  }
  if (context_parallel_config && tensor_parallel_config && context_parallel_config->mesh &&
      tensor_parallel_config->mesh) {
    check<ConfigError>(context_parallel_config->mesh->axes() == tensor_parallel_config->mesh->axes(),
                       "the two configs have different meshes: ", context_parallel_config->mesh->to_string(), " and ",
                       tensor_parallel_config->mesh->to_string(), ". Give one mesh.");
  }
}

Mesh ParallelConfig::mesh(int rank, int world_size) const {
  validate();
  const int ring = context_parallel_config ? context_parallel_config->ring() : 1;
  const int ulysses = context_parallel_config ? context_parallel_config->ulysses() : 1;
  const int tp = tensor_parallel_config ? tensor_parallel_config->degree() : 1;
  const Mesh* custom = nullptr;
  if (context_parallel_config && context_parallel_config->mesh) custom = &*context_parallel_config->mesh;
  if (tensor_parallel_config && tensor_parallel_config->mesh) custom = &*tensor_parallel_config->mesh;
  if (custom) {
    check<ConfigError>(custom->size() == world_size && custom->rank() == rank, "the mesh (", custom->to_string(),
                       ") is of rank ", custom->rank(), " of ", custom->size(), ", and this is rank ", rank, " of ",
                       world_size, ".");
    check_axis(*custom, "ring", ring);
    check_axis(*custom, "ulysses", ulysses);
    check_axis(*custom, "tp", tp);
    // A further axis is the caller's, unless a degree is given for it.
    for (const auto& [axis, degree] :
         {std::pair{"dp", dp_degree}, std::pair{"fsdp", fsdp_degree}, std::pair{"cfg", cfg_degree}}) {
      if (degree != 1) check_axis(*custom, axis, degree);
    }
    return *custom;
  }
  check<ConfigError>(ranks() == 1 || world_size != 1, "the degrees multiply to ", ranks(),
                     ", and there is no process group: this is the only rank. Start ", ranks(),
                     " with torchrun, mpirun or srun, or with PARDIFF_NPROC_PER_NODE=", ranks(), ".");
  check<ConfigError>(ranks() == world_size, "the degrees multiply to ", ranks(), " (dp ", dp_degree, ", fsdp ",
                     fsdp_degree, ", cfg ", cfg_degree, ", ring ", ring, ", ulysses ", ulysses, ", tp ", tp,
                     "), and there are ", world_size, " ranks. Make them equal.");
  return Mesh(rank, world_size,
              {{"dp", dp_degree},
               {"fsdp", fsdp_degree},
               {"cfg", cfg_degree},
               {"ring", ring},
               {"ulysses", ulysses},
               {"tp", tp}});
}

}  // namespace pardiff
