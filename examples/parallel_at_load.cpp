// Loading straight into a parallel layout: each rank reads only its slices.   parallel_at_load [MODEL [SIDE [STEPS]]]
#include <pardiff/pardiff.h>

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "black-forest-labs/FLUX.1-dev";
  const int64_t side = argc > 2 ? std::stoll(argv[2]) : 128;
  const int steps = argc > 3 ? std::stoi(argv[3]) : 2;
  return pardiff::run([&](pardiff::World& world) {  // the ranks must exist before a model can be shared among them
    auto transformer = pardiff::AutoModel::from_pretrained<pardiff::FluxTransformer2DModel>(
        model, world,
        {.subfolder = "transformer",
         .dtype = at::kFloat,
         .parallel_config = pardiff::TensorParallelConfig{.tp_degree = world.size()}});
    auto pipeline =
        pardiff::DiffusionPipeline::from_pretrained(model, world, {.dtype = at::kFloat, .transformer = transformer});
    const auto images = pipeline({.prompt = "a large yellow star on a purple background",
                                  .height = side,
                                  .width = side,
                                  .num_inference_steps = steps,
                                  .seed = 0,
                                  .max_sequence_length = 64});
    if (world.rank() == 0) images[0].save("parallel_at_load.png");
  });
}
