// What an anything mode costs at a size that its plain mode can cut: step times of both in one run, taken alternately.
//   PARDIFF_NPROC_PER_NODE=2 OMP_NUM_THREADS=1 anything_cost MODEL [PAIRS [SIDE]]
// A pair is a call of each mode, which of them comes first taking turns; its figure is the ratio of the two calls'
// median steps. Prints the median over the pairs with a 95 % bootstrap interval, for Ulysses and for the ring.
#include <pardiff/pardiff.h>

#include <algorithm>
#include <cstdio>
#include <random>

namespace {

using Values = std::vector<double>;

double median(Values values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::pair<double, double> bootstrap_interval(const Values& values) {
  constexpr int kDraws = 2000;
  std::mt19937_64 random(0);
  Values medians;
  for (int draw = 0; draw < kDraws; ++draw) {
    Values sample;
    for (size_t i = 0; i < values.size(); ++i) sample.push_back(values[random() % values.size()]);
    medians.push_back(median(sample));
  }
  std::sort(medians.begin(), medians.end());
  return {medians[kDraws / 40], medians[kDraws - kDraws / 40 - 1]};
}

struct Options {
  std::string model;
  int pairs = 100;
  int64_t side = 128;
};

double step_seconds(pardiff::FluxPipeline& pipeline, int64_t side) {
  const auto output = pipeline.generate({.prompt = "a red circle on a blue background",
                                         .height = side,
                                         .width = side,
                                         .num_inference_steps = 4,
                                         .seed = 42,
                                         .max_sequence_length = 64},
                                        {.skip_decode = true});
  return median(output.step_seconds);
}

void compare(pardiff::World& world, const Options& options, const char* name, pardiff::ContextParallelConfig plain,
             pardiff::ContextParallelConfig anything) {
  const auto load = [&](const pardiff::ContextParallelConfig& config) {
    return pardiff::FluxPipeline::from_pretrained(options.model, world,
                                                  {.parallel_config = config, .keep_loaded = true});
  };
  auto plain_pipeline = load(plain), anything_pipeline = load(anything);
  step_seconds(plain_pipeline, options.side);  // memory and connections
  step_seconds(anything_pipeline, options.side);
  Values plain_steps, anything_steps, ratios;
  for (int pair = 0; pair < options.pairs; ++pair) {
    const auto take_plain = [&] { plain_steps.push_back(step_seconds(plain_pipeline, options.side)); };
    const auto take_anything = [&] { anything_steps.push_back(step_seconds(anything_pipeline, options.side)); };
    if (pair % 2 == 0) take_plain();
    take_anything();
    if (pair % 2 == 1) take_plain();
    ratios.push_back(anything_steps.back() / plain_steps.back());
  }
  if (world.rank() != 0) return;
  const auto [low, high] = bootstrap_interval(ratios);
  std::printf("| %s | %d | %.4f | %.4f | %.3f | %.3f to %.3f |\n", name, options.pairs, median(plain_steps),
              median(anything_steps), median(ratios), low, high);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: anything_cost MODEL [PAIRS [SIDE]]\n");
    return 2;
  }
  const Options options{argv[1], argc > 2 ? std::max(1, std::stoi(argv[2])) : 100,
                        argc > 3 ? std::stoll(argv[3]) : 128};
  return pardiff::run(
      [&](pardiff::World& world) {
        const int ranks = world.size();
        if (world.rank() == 0)
          std::printf("| mode | pairs | plain step, s | anything step, s | ratio | 95 %% interval |\n");
        compare(world, options, "ulysses", {.ulysses_degree = ranks},
                {.ulysses_degree = ranks, .ulysses_anything = true});
        compare(world, options, "ring", {.ring_degree = ranks}, {.ring_degree = ranks, .ring_anything = true});
      },
      {.device = "cpu"});
}
