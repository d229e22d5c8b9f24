#pragma once
#include <pardiff/parallel/mesh.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pardiff {

class Model;
class World;

struct GradientReduction {
  /// Modules, by keys as in a plan, whose parameters are whole on every tp rank and meet that rank's heads only.
  std::vector<std::string> on_local_heads{};
  /// Gradients travel together, up to this many bytes in one all-reduce (a larger gradient travels alone).
  int64_t bucket_bytes = int64_t{256} << 20;
};

/// Makes the gradients of a parallel model those that one rank would have computed; call it between backward() and the
/// optimiser's step. Every rank of a context or tp group must have computed the same loss of the gathered output. In
/// place, per parameter that requires a gradient:
/// - summed over the context ranks (ring x ulysses), each of which has the part of its tokens;
/// - summed over the tp ranks too where the parameter is whole on each of them and meets its heads only (the norms of
///   query and key); other gradients of whole parameters are complete there, and a slice's belongs to its rank;
/// - divided by the number of dp and fsdp ranks and summed over them: the mean, for their data differ.
/// Where weights are sharded over ranks the same is done with the gradients of Model::weight_parts, but for the axes
/// over which backward has summed them already. A parameter without a gradient on some ranks has zeros there; one
/// without a gradient on any keeps none. A model that is not parallel is left as it is. A parameter behind a gather is
/// computed whole on every context rank and would be counted once for each: gather last.
/// Collective: every rank of the model's mesh. Sums in rank-independent order, bit-equal on every rank.
/// Precision: half-precision gradients are summed in float32.
/// Cost: one all-gather of two numbers, and one all-reduce per bucket.
/// Throws: ConfigError if the mesh has a cfg axis of more than one rank, which is for inference only; CommError on
/// every rank if the ranks have different parameters, dtypes or frozen ones.
void reduce_gradients(Model& model);
/// The same for a module to which apply_context_parallel or apply_tensor_parallel was applied on `mesh`.
/// Throws: ConfigError too for a key that names no module.
void reduce_gradients(torch::nn::Module& module, World& world, const Mesh& mesh, const GradientReduction& options = {});

}  // namespace pardiff
