// The roofline of a step: what its matrix products and attentions take at their exact shapes, each as the fastest call
// at hand makes it, beside the measured step. One rank, the model's own weights, modulation left out on both sides.
//   roofline MODEL [SIDE [TEXT_TOKENS [REPEATS]]]      OMP_NUM_THREADS chooses the threads
// A shape's time is the least of REPEATS (20 or more) calls of every candidate; the step's that of as many steps, taken
// in turn with the products, so that another load on the machine meets both.
#include <ATen/ATen.h>
#include <pardiff/pardiff.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

namespace pardiff {
namespace {

using Work = std::function<void()>;

double seconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One kind of call that a step makes: several ways to do it, the least time of each so far.
struct Part {
  std::string name;
  double operations = 0;  // floating-point, of one call
  int64_t calls = 0;      // of a step
  std::map<std::string, Work> ways{};
  std::map<std::string, double> least{};

  void measure() {
    for (const auto& [way, work] : ways) {
      auto& best = least.try_emplace(way, std::numeric_limits<double>::infinity()).first->second;
      best = std::min(best, seconds(work));
    }
  }
  std::pair<std::string, double> fastest() const {
    return *std::min_element(least.begin(), least.end(), [](auto& a, auto& b) { return a.second < b.second; });
  }
};

struct Options {
  std::string model;
  int64_t side = 512, text_tokens = 512, repeats = 20;
  int64_t image_tokens() const { return side / 16 * (side / 16); }
};

// The rows that a layer of this name multiplies, or 0 for what is modulation's.
int64_t rows_of(const std::string& name, const Options& options) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("time_text_embed") || has("norm")) return 0;
  if (name.starts_with("single_transformer_blocks")) return options.image_tokens() + options.text_tokens;
  if (has("context") || has(".add_") || has("to_add_out")) return options.text_tokens;
  return options.image_tokens();
}

void add_products(std::vector<Part>& parts, FluxTransformer2DModel& model, const Options& options) {
  std::map<std::tuple<int64_t, int64_t, int64_t>, size_t> place;  // one part for all layers of a shape
  for (const auto& item : model->named_modules()) {
    auto layer = std::dynamic_pointer_cast<nn::LinearImpl>(item.value());
    const int64_t rows = layer ? rows_of(item.key(), options) : 0;
    if (rows == 0) continue;
    const int64_t in = layer->weight.size(1), out = layer->weight.size(0);
    const auto [found, is_new] = place.try_emplace({rows, in, out}, parts.size());
    if (is_new) {
      const auto x = at::randn({rows, in}, layer->weight.options());
      auto y = at::empty({rows, out}, x.options());
      Part part{text_of(rows, " x ", in, " -> ", out), 2.0 * static_cast<double>(rows * in * out)};
      part.ways["addmm_out"] = [x, y, layer]() mutable { at::addmm_out(y, layer->bias, x, layer->weight.t()); };
      part.ways["linear"] = [x, layer] { at::linear(x, layer->weight, layer->bias); };
      part.ways["layer"] = [x, layer] { layer->forward(x); };
      parts.push_back(std::move(part));
    }
    ++parts[found->second].calls;
  }
}

void add_attention(std::vector<Part>& parts, const FluxTransformerConfig& config, const Options& options) {
  const int64_t tokens = options.image_tokens() + options.text_tokens, heads = config.num_attention_heads;
  const auto qkv = at::randn({3, 1, tokens, heads, config.attention_head_dim});
  const auto first = qkv.transpose(2, 3);
  Part part{text_of("attention ", tokens, " x ", heads, " x ", config.attention_head_dim),
            4.0 * static_cast<double>(tokens * tokens * heads * config.attention_head_dim)};
  part.calls = config.num_layers + config.num_single_layers;
  part.ways["engine"] = [first] { at::scaled_dot_product_attention(first[0], first[1], first[2]); };
  part.ways["native"] = [qkv, attention = Attention()]() mutable { attention->forward(qkv[0], qkv[1], qkv[2]); };
  parts.push_back(std::move(part));
}

// The steps of one picture; the first, which also computes the modulation, left out.
double least_step(FluxPipeline& pipeline, const Options& options) {
  const auto output = pipeline.generate({.prompt = "a red circle on a blue background",
                                         .height = options.side,
                                         .width = options.side,
                                         .num_inference_steps = 4,
                                         .seed = 42,
                                         .max_sequence_length = options.text_tokens},
                                        {.skip_decode = true});
  return *std::min_element(output.step_seconds.begin() + 1, output.step_seconds.end());
}

void print(const std::vector<Part>& parts, double step) {
  std::printf("| calls | shape | fastest | ms a call | GFLOP/s | ms a step |\n|---|---|---|---|---|---|\n");
  double sum = 0;
  for (const auto& part : parts) {
    const auto [way, least] = part.fastest();
    const double all = least * static_cast<double>(part.calls);
    std::printf("| %lld | %s | %s | %.4f | %.0f | %.3f |\n", static_cast<long long>(part.calls), part.name.c_str(),
                way.c_str(), least * 1e3, part.operations / least / 1e9, all * 1e3);
    sum += all;
  }
  std::printf("\nroofline %.3f ms, step %.3f ms, %d threads: roofline / step %.3f\n", sum * 1e3, step * 1e3,
              at::get_num_threads(), sum / step);
}

void measure(World& world, const Options& options) {
  const at::NoGradGuard no_grad;
  auto pipeline = FluxPipeline::from_pretrained(options.model, world, {.dtype = at::kFloat, .keep_loaded = true});
  auto model = pipeline.transformer();
  std::vector<Part> parts;
  add_products(parts, model, options);
  add_attention(parts, model->config(), options);
  double step = least_step(pipeline, options);
  for (int64_t repeat = 0; repeat < options.repeats; ++repeat) {
    for (auto& part : parts) part.measure();
    step = std::min(step, least_step(pipeline, options));
  }
  print(parts, step);
}

}  // namespace
}  // namespace pardiff

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "use: roofline MODEL [SIDE [TEXT_TOKENS [REPEATS]]]\n");
    return 2;
  }
  pardiff::Options options{.model = argv[1]};
  if (argc > 2) options.side = std::atoll(argv[2]);
  if (argc > 3) options.text_tokens = std::atoll(argv[3]);
  if (argc > 4) options.repeats = std::max<int64_t>(1, std::atoll(argv[4]));
  return pardiff::run([&](pardiff::World& world) { pardiff::measure(world, options); }, {.device = "cpu"});
}
