// How much of one denoising step is what cannot be avoided: the matrix products and the attentions of a transformer
// with FLUX.1's shapes (one double and two single blocks), timed alone, over the whole step. One rank, random weights.
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pardiff/attention/attention.h>
#include <pardiff/comm/world.h>
#include <pardiff/models/flux_transformer.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>

namespace pardiff {
namespace {

struct Options {
  std::string device = "cuda", dtype = "bfloat16", backend = "native";
  int64_t heads = 24, image_tokens = 4096, text_tokens = 512, repeats = 10;
};

constexpr int64_t kHeadDim = 128;

Options parse(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  Options options;
  const auto number = [&](const char* flag, int64_t& value) {
    if (given.count(flag)) value = std::max<int64_t>(1, std::atoll(given[flag].c_str()));
  };
  const auto text = [&](const char* flag, std::string& value) {
    if (given.count(flag)) value = given[flag];
  };
  text("--device", options.device);
  text("--dtype", options.dtype);
  text("--attention-backend", options.backend);
  number("--heads", options.heads);
  number("--image-tokens", options.image_tokens);
  number("--text-tokens", options.text_tokens);
  number("--repeats", options.repeats);
  return options;
}

class Timer {
 public:
  Timer(at::Device device, int64_t repeats) : device_(device), repeats_(repeats) {}

  // The median of the repeats, in milliseconds, after a third as many (at least one) that are not timed.
  double median(const std::function<void()>& work) const {
    for (int64_t i = 0; i < std::max<int64_t>(1, repeats_ / 3); ++i) work();
    std::vector<double> times;
    for (int64_t i = 0; i < repeats_; ++i) {
      wait();
      const auto start = std::chrono::steady_clock::now();
      work();
      wait();
      times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }

 private:
  void wait() const {
    if (device_.is_cuda()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }

  at::Device device_;
  int64_t repeats_;
};

// The rows that a layer of this name multiplies in one step.
int64_t rows_of(const std::string& name, const Options& options) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("time_text_embed") || has("norm")) return 1;  // of a sample, not of its tokens
  if (name.starts_with("single_transformer_blocks")) return options.image_tokens + options.text_tokens;
  if (has("context") || has(".add_") || has("to_add_out")) return options.text_tokens;
  return options.image_tokens;
}

// The products of every linear layer, each with an input of its own.
std::vector<std::function<void()>> products(FluxTransformer2DModel& model, const Options& options) {
  std::vector<std::function<void()>> all;
  for (const auto& item : model->named_modules()) {
    const auto* layer = item.value()->as<nn::Linear>();
    if (!layer) continue;
    const auto x = at::randn({1, rows_of(item.key(), options), layer->in_features()}, layer->weight.options());
    all.emplace_back([layer, x] { layer->product(x); });
  }
  return all;
}

FluxTransformerInputs random_inputs(const FluxTransformerConfig& config, const Options& options,
                                    const at::TensorOptions& kind) {
  const auto plain = kind.dtype(at::kFloat);
  return {.hidden_states = at::randn({1, options.image_tokens, config.in_channels}, kind),
          .encoder_hidden_states = at::randn({1, options.text_tokens, config.joint_attention_dim}, kind),
          .pooled_projections = at::randn({1, config.pooled_projection_dim}, kind),
          .timestep = at::full({1}, 0.5, kind),
          .img_ids = at::randint(0, 64, {options.image_tokens, 3}, plain),
          .txt_ids = at::zeros({options.text_tokens, 3}, plain),
          .guidance = at::full({1}, 3.5, plain)};
}

void measure(World& world, const Options& options) {
  const at::NoGradGuard no_grad;
  const auto dtype = options.dtype == "bfloat16" ? at::kBFloat16 : options.dtype == "float16" ? at::kHalf : at::kFloat;
  const auto kind = at::TensorOptions().dtype(dtype).device(world.device());
  const FluxTransformerConfig config{
      .num_layers = 1, .num_single_layers = 2, .num_attention_heads = options.heads, .guidance_embeds = true};
  FluxTransformer2DModel model(config, nn::ParameterOptions{.dtype = dtype});
  model->to(world.device());
  for (auto& parameter : model->parameters()) parameter.normal_(0, 0.02);
  model->set_attention_backend(options.backend);

  const Timer timer(world.device(), options.repeats);
  const auto layers = products(model, options);
  const double product_ms = timer.median([&] {
    for (const auto& layer : layers) layer();
  });
  Attention attention;
  attention->set_backend(options.backend);
  const auto tokens = options.image_tokens + options.text_tokens;
  const auto qkv = at::randn({3, 1, tokens, options.heads, kHeadDim}, kind);
  const auto blocks = config.num_layers + config.num_single_layers;
  const double attention_ms = blocks * timer.median([&] { attention->forward(qkv[0], qkv[1], qkv[2]); });
  const auto inputs = random_inputs(config, options, kind);
  const double step_ms = timer.median([&] { model->forward(inputs); });

  std::cout << "device " << world.device() << ", " << options.dtype << ", " << options.image_tokens << " + "
            << options.text_tokens << " tokens, " << options.heads << " heads, backend " << options.backend << "\n"
            << "matrix products " << product_ms << " ms, attention " << attention_ms << " ms, step " << step_ms
            << " ms\n"
            << "products and attention / step: " << (product_ms + attention_ms) / step_ms << "\n";
}

}  // namespace
}  // namespace pardiff

int main(int argc, char** argv) {
  const auto options = pardiff::parse(argc, argv);
  return pardiff::run([&](pardiff::World& world) { pardiff::measure(world, options); }, {.device = options.device});
}
