// The documentation's program.   ring_attention [MODEL [SIDE [STEPS]]]
#include <pardiff/pardiff.h>

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "black-forest-labs/FLUX.1-dev";
  const int64_t side = argc > 2 ? std::stoll(argv[2]) : 1024;
  const int steps = argc > 3 ? std::stoi(argv[3]) : 50;
  return pardiff::run([&](pardiff::World& world) {  // this rank's work, under torchrun, mpirun or the own launcher
    auto pipeline = pardiff::FluxPipeline::from_pretrained(model, world, {.dtype = at::kBFloat16});
    auto transformer = pipeline.transformer();
    if (world.device().is_cuda()) transformer->set_attention_backend("_native_cudnn");
    transformer->enable_parallelism(pardiff::ContextParallelConfig{.ring_degree = world.size()}, world);
    const auto images = pipeline({.prompt = "a cat sipping a margarita in a pool",
                                  .height = side,
                                  .width = side,
                                  .num_inference_steps = steps,
                                  .guidance_scale = 3.5,
                                  .seed = 42});
    if (world.rank() == 0) images[0].save("output.png");
  });
}
