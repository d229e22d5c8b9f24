// What cannot be shared is refused by ranks that are processes with one text, before any of them waits for another.
#include <gtest/gtest.h>
#include <pardiff/core/check.h>
#include <pardiff/core/error.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "support/golden.h"
#include "support/rank_program.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;

// Throws unless the ranks refuse to load `model` with one text that has all of `parts`.
void check_refusal(World& world, const fs::path& model, int tp, const std::vector<std::string>& parts) {
  std::string message;
  try {
    FluxPipeline::from_pretrained(
        model.string(), world,
        {.parallel_config = ParallelConfig{.tensor_parallel_config = TensorParallelConfig{.tp_degree = tp}}});
  } catch (const Error& error) {
    message = error.what();
  }
  check<Error>(!message.empty(), "the pipeline was not refused");
  world.agree("the refusal", message);
  for (const auto& part : parts)
    check<Error>(message.find(part) != std::string::npos, "'", message, "' lacks '", part, "'");
}

void refuse_a_degree(World& world) {
  check_refusal(world, testing::model_path("flux-shapes"), world.size(),
                {"tp_degree 3", "4 attention heads of FluxTransformer2DModel"});
}

// Rank 0's copy of flux-shapes without one tensor of the transformer.
void take_out(const fs::path& model, const std::string& missing) {
  fs::copy(testing::model_path("flux-shapes"), model, fs::copy_options::recursive);
  const auto source = Checkpoint::open(model / "transformer", "diffusion_pytorch_model");
  std::vector<NamedTensor> tensors;
  for (const auto& name : source.names()) {
    if (name != missing) tensors.push_back({name, source.tensor(name)});
  }
  save_checkpoint(model / "transformer", "diffusion_pytorch_model", tensors);
}

void refuse_a_missing_tensor(World& world) {
  const std::string missing = "single_transformer_blocks.0.proj_out.weight";
  std::unique_ptr<testing::TemporaryFolder> folder;
  if (world.rank() == 0) {
    folder = std::make_unique<testing::TemporaryFolder>();
    take_out(*folder / "model", missing);
  }
  const auto model = world.text_from_rank_0(folder ? (*folder / "model").string() : "");
  check_refusal(world, model, world.size(), {missing, "transformer"});
}

TEST(RanksThatAreProcesses, RefuseADegreeWithOneText) { testing::expect_ranks_succeed(3, "a degree"); }
TEST(RanksThatAreProcesses, RefuseAMissingTensorWithOneText) { testing::expect_ranks_succeed(2, "a missing tensor"); }

}  // namespace
}  // namespace pardiff

int main(int argc, char** argv) {
  return pardiff::testing::run_tests_or_rank(
      argc, argv, {{"a degree", pardiff::refuse_a_degree}, {"a missing tensor", pardiff::refuse_a_missing_tensor}},
      {.device = "cpu", .threads = 1, .timeout_s = 60});
}
