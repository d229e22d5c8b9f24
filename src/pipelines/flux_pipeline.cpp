#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/core/log.h>
#include <pardiff/io/model_folder.h>
#include <pardiff/models/apply.h>
#include <pardiff/pipelines/flux_pipeline.h>
#include <unistd.h>

#include <chrono>
#include <random>

#include "pipelines/flux_denoise.h"
#include "pipelines/flux_inputs_check.h"
#include "pipelines/flux_latents.h"
#include "pipelines/part_loading.h"

namespace pardiff {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kClipLength = 77;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<std::string> repeated(const Prompts& texts, size_t count) {
  auto all = texts.texts();
  if (all.size() == 1) all.resize(count, all.front());
  return all;
}

const Prompts& first_given(const Prompts& preferred, const Prompts& other) {
  return preferred.given() ? preferred : other;
}

template <typename Tokenizer>
at::Tensor tokenize(const Tokenizer& tokenizer, const std::vector<std::string>& texts, int length, const char* encoder,
                    bool warns) {
  std::vector<at::Tensor> rows;
  for (const auto& text : texts) {
    const auto tokens = tokenizer.encode(text, length);
    rows.push_back(at::tensor(tokens.ids, at::kLong));
    if (warns && !tokens.cut_off.empty()) {
      warn(text_of("the ", encoder, " encoder takes ", length, " tokens; cut off from the prompt: \"", tokens.cut_off,
                   "\"."));
    }
  }
  return at::stack(rows);
}

struct Size {
  int64_t height, width;  // pixels
};

// Rough, and meant to be: what a request cannot do without.
void check_memory(const FluxTransformerConfig& config, int64_t pictures, int64_t image_tokens, int64_t text_tokens,
                  const Size& size, int64_t ranks) {
  constexpr double kLiveActivations = 20;  // of [tokens, inner_dim] at once
  constexpr double kPixelBytes = 4 * 3 * 16;
  const double tokens = static_cast<double>(image_tokens + text_tokens) / static_cast<double>(ranks);
  const double activations = kLiveActivations * 4 * static_cast<double>(pictures * config.inner_dim()) * tokens;
  const double pixels = kPixelBytes * static_cast<double>(pictures) * static_cast<double>(size.height * size.width);
  const double available = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const double needed = std::max(activations, pixels);
  check<ConfigError>(needed < available, pictures, " pictures of ", size.height, "x", size.width, " need about ",
                     static_cast<int64_t>(needed / 1e9), " GB of memory on a rank, and this machine has ",
                     static_cast<int64_t>(available / 1e9), " GB. Use a smaller size, fewer pictures or more ranks.");
}

int64_t random_seed() {
  std::random_device device;
  return static_cast<int64_t>(device());
}

}  // namespace

struct FluxPipeline::State {
  World* world = nullptr;
  std::filesystem::path folder;
  FluxPipelineOptions options;

  ClipTokenizer tokenizer;
  T5Tokenizer tokenizer_2;
  FlowMatchEulerDiscreteScheduler scheduler;
  FluxTransformer2DModel transformer{nullptr};
  AutoencoderKL vae{nullptr};
  ClipTextModel text_encoder{nullptr};
  T5EncoderModel text_encoder_2{nullptr};

  ParameterBytes encoder_bytes, core_bytes;
  double load_seconds = 0;
  std::map<std::string, OperationCount> counts_before;

  void load_encoders();
  void free_encoders();
  void load_core();
  flux::Condition encode(const Prompts& prompt, const Prompts& prompt_2, size_t prompts,
                         const FluxPipelineInputs& inputs, FluxPipelineOutput* output);
  Size rounded_size(const FluxPipelineInputs& inputs) const;
  at::Tensor initial_latents(const FluxPipelineInputs& inputs, const Size& size, at::ScalarType dtype,
                             FluxPipelineOutput& output);
  void decode(const at::Tensor& latents, const Size& size, FluxPipelineOutput& output);
  void check_inputs(const FluxPipelineInputs& inputs) const;
  int64_t latents_per_side(int64_t pixels) const { return 2 * (pixels / (2 * vae->config().scale_factor())); }
};

void FluxPipeline::State::load_encoders() {
  if (text_encoder && text_encoder_2) return;
  encoder_bytes = {};
  std::optional<PartFiles> clip, t5;
  if (!text_encoder) clip = open_part(folder / "text_encoder", "model", options.variant);
  if (!text_encoder_2) t5 = open_part(folder / "text_encoder_2", "model", options.variant);
  if (clip) {
    text_encoder = ClipTextModel(ClipTextConfig::from_file(clip->config), kPlaceholders);
    fill_part(*text_encoder, clip->checkpoint, text_encoder->load_options(options.dtype), *world, std::nullopt);
  }
  if (t5) {
    text_encoder_2 = T5EncoderModel(T5Config::from_file(t5->config), kPlaceholders);
    fill_part(*text_encoder_2, t5->checkpoint, text_encoder_2->load_options(options.dtype), *world, std::nullopt);
  }
  encoder_bytes += parameter_bytes(*text_encoder, clip ? &clip->checkpoint : nullptr);
  encoder_bytes += parameter_bytes(*text_encoder_2, t5 ? &t5->checkpoint : nullptr);
}

void FluxPipeline::State::free_encoders() {
  if (options.keep_loaded) return;
  if (!options.text_encoder) text_encoder = nullptr;
  if (!options.text_encoder_2) text_encoder_2 = nullptr;
}

void FluxPipeline::State::load_core() {
  std::optional<PartFiles> transformer_files, vae_files;
  const std::string stem = "diffusion_pytorch_model";
  if (!transformer) transformer_files = open_part(folder / "transformer", stem, options.variant);
  if (!vae) vae_files = open_part(folder / "vae", stem, options.variant);
  if (vae_files) {
    vae = AutoencoderKL(AutoencoderKLConfig::from_file(vae_files->config), kPlaceholders, AutoencoderParts::kDecoder);
    fill_part(*vae, vae_files->checkpoint, vae->load_options(options.dtype), *world, std::nullopt);
  }
  if (transformer_files) {
    transformer = FluxTransformer2DModel(FluxTransformerConfig::from_file(transformer_files->config), kPlaceholders);
    if (!options.attention_backend.empty()) transformer->set_attention_backend(options.attention_backend);
    fill_part(*transformer, transformer_files->checkpoint, transformer->load_options(options.dtype), *world,
              options.parallel_config.config());
  }
  core_bytes += parameter_bytes(*transformer, transformer_files ? &transformer_files->checkpoint : nullptr);
  core_bytes += parameter_bytes(*vae, vae_files ? &vae_files->checkpoint : nullptr);
}

FluxPipeline FluxPipeline::from_pretrained(const std::string& model, World& world, const FluxPipelineOptions& options) {
  const auto start = Clock::now();
  const at::NoGradGuard no_grad;
  const auto counts = world.counter().counts();
  const auto folder = resolve_model(model, options.revision);
  const auto index = ConfigFile::open(folder / "model_index.json");
  check<ConfigError>(index.class_name() == "FluxPipeline", index.origin(), " is of a ", index.class_name(),
                     ". There is only: FluxPipeline.");
  auto state = std::unique_ptr<State>(
      new State{&world,
                folder,
                options,
                options.tokenizer ? *options.tokenizer : ClipTokenizer::from_pretrained(folder / "tokenizer"),
                options.tokenizer_2 ? *options.tokenizer_2 : T5Tokenizer::from_pretrained(folder / "tokenizer_2"),
                options.scheduler ? *options.scheduler
                                  : FlowMatchEulerDiscreteScheduler(FlowMatchEulerConfig::from_file(
                                        ConfigFile::open(folder / "scheduler" / "scheduler_config.json"))),
                options.transformer,
                options.vae,
                options.text_encoder,
                options.text_encoder_2,
                {},
                {},
                0,
                counts});
  state->load_encoders();
  state->load_core();
  const auto& config = state->transformer->config();
  check<ConfigError>(config.in_channels == 4 * state->vae->config().latent_channels, "the transformer takes ",
                     config.in_channels, " channels a token, and the VAE has ", state->vae->config().latent_channels,
                     " latent channels. Four times those must be the first.");
  state->load_seconds = seconds_since(start);
  return FluxPipeline(std::move(state));
}

FluxPipeline::FluxPipeline(std::unique_ptr<State> state) : state_(std::move(state)) {}
FluxPipeline::~FluxPipeline() = default;
FluxPipeline::FluxPipeline(FluxPipeline&& other) noexcept = default;
FluxPipeline& FluxPipeline::operator=(FluxPipeline&& other) noexcept = default;

FluxTransformer2DModel FluxPipeline::transformer() const { return state_->transformer; }
AutoencoderKL FluxPipeline::vae() const { return state_->vae; }
const FlowMatchEulerDiscreteScheduler& FluxPipeline::scheduler() const { return state_->scheduler; }
int64_t FluxPipeline::size_multiple() const { return 2 * state_->vae->config().scale_factor(); }

Size FluxPipeline::State::rounded_size(const FluxPipelineInputs& inputs) const {
  const int64_t factor = vae->config().scale_factor(), multiple = 2 * factor;
  const auto rounded = [&](std::optional<int64_t> pixels) {
    return pixels.value_or(128 * factor) / multiple * multiple;
  };
  return {rounded(inputs.height), rounded(inputs.width)};
}

void FluxPipeline::State::check_inputs(const FluxPipelineInputs& inputs) const {
  flux::check_arguments(inputs);
  const auto size = rounded_size(inputs);
  const int64_t multiple = 2 * vae->config().scale_factor();
  check<UsageError>(size.height > 0 && size.width > 0, "the picture would be ", inputs.height.value_or(size.height),
                    "x", inputs.width.value_or(size.width), " pixels. The least is ", multiple, "x", multiple, ".");
  const int64_t image_tokens = (size.height / multiple) * (size.width / multiple);
  const int64_t text_tokens =
      inputs.prompt_embeds.defined() ? inputs.prompt_embeds.size(1) : inputs.max_sequence_length;
  check<UsageError>(!inputs.negative_prompt_embeds.defined() || inputs.negative_prompt_embeds.size(1) == text_tokens,
                    "negative_prompt_embeds and the prompt have different numbers of tokens. Make them equal.");
  if (inputs.latents.defined()) {
    const int64_t channels = transformer->config().in_channels;
    check<UsageError>(inputs.latents.sizes() == at::IntArrayRef({flux::picture_count(inputs), image_tokens, channels}),
                      "latents have shape ", inputs.latents.sizes(), ". Give them packed: [",
                      flux::picture_count(inputs), ", ", image_tokens, ", ", channels, "].");
  }
  auto& network = *transformer.ptr();
  flux::check_lengths(network, image_tokens, text_tokens);
  const auto share = context_share(network);
  check_memory(transformer->config(), flux::picture_count(inputs), image_tokens, text_tokens, size,
               share ? share->group.size() : 1);
}

void FluxPipeline::check_inputs(const FluxPipelineInputs& inputs) const { state_->check_inputs(inputs); }

flux::Condition FluxPipeline::State::encode(const Prompts& prompt, const Prompts& prompt_2, size_t prompts,
                                            const FluxPipelineInputs& inputs, FluxPipelineOutput* output) {
  const bool warns = world->rank() == 0;
  const auto clip_ids = tokenize(tokenizer, repeated(prompt, prompts), kClipLength, "CLIP", warns);
  const auto t5_ids = tokenize(tokenizer_2, repeated(first_given(prompt_2, prompt), prompts),
                               static_cast<int>(inputs.max_sequence_length), "T5", warns);
  if (output) {
    output->clip_token_ids = clip_ids;
    output->t5_token_ids = t5_ids;
  }
  load_encoders();
  const auto device = world->device();
  const int64_t copies = inputs.num_images_per_prompt;
  return {text_encoder_2->forward(t5_ids.to(device)).repeat_interleave(copies, 0),
          text_encoder->forward(clip_ids.to(device)).pooler_output.repeat_interleave(copies, 0)};
}

at::Tensor FluxPipeline::State::initial_latents(const FluxPipelineInputs& inputs, const Size& size,
                                                at::ScalarType dtype, FluxPipelineOutput& output) {
  at::Tensor latents;
  if (inputs.latents.defined()) {
    latents = inputs.latents.to(at::kCPU, dtype);
  } else {
    auto seeds = inputs.seed;
    if (!seeds.given()) seeds = Seeds(world->from_rank_0(world->rank() == 0 ? random_seed() : 0));
    output.seeds = seeds.values();
    latents = flux::pack(flux::draw_noise(seeds, flux::picture_count(inputs), transformer->config().in_channels / 4,
                                          latents_per_side(size.height), latents_per_side(size.width), dtype));
  }
  output.latents_sha256 = flux::sha256(latents);
  world->agree("the initial latents", output.latents_sha256);
  return latents.to(world->device());
}

void FluxPipeline::State::decode(const at::Tensor& latents, const Size& size, FluxPipelineOutput& output) {
  if (world->rank() != 0) return;
  const auto unpacked = flux::unpack(latents, latents_per_side(size.height), latents_per_side(size.width));
  const auto decoded = vae->decode(vae->unscaled(unpacked.to(vae->parameters().front().scalar_type())));
  output.image = (decoded * 0.5 + 0.5).clamp(0, 1).to(at::kCPU, at::kFloat).contiguous();
  for (const auto& picture : output.image.unbind(0)) output.images.push_back(Image::from_tensor(picture));
}

FluxPipelineOutput FluxPipeline::generate(const FluxPipelineInputs& inputs, const GenerateOptions& options) {
  const at::NoGradGuard no_grad;
  auto& state = *state_;
  state.check_inputs(inputs);
  const auto size = state.rounded_size(inputs);
  FluxPipelineOutput output;
  output.height = size.height;
  output.width = size.width;
  if (state.world->rank() == 0 &&
      (inputs.height.value_or(size.height) != size.height || inputs.width.value_or(size.width) != size.width)) {
    warn(text_of("the size ", inputs.height.value_or(size.height), "x", inputs.width.value_or(size.width),
                 " is rounded down to ", size.height, "x", size.width, ", multiples of ", size_multiple(), "."));
  }

  auto start = Clock::now();
  flux::Denoising work;
  const auto prompts = inputs.prompt.texts().size();
  if (inputs.prompt_embeds.defined()) {
    work.condition = {inputs.prompt_embeds, inputs.pooled_prompt_embeds};
  } else {
    work.condition = state.encode(inputs.prompt, inputs.prompt_2, prompts, inputs, &output);
  }
  if (flux::uses_true_cfg(inputs)) {
    work.negative = inputs.negative_prompt_embeds.defined()
                        ? flux::Condition{inputs.negative_prompt_embeds, inputs.negative_pooled_prompt_embeds}
                        : state.encode(inputs.negative_prompt, inputs.negative_prompt_2, std::max<size_t>(prompts, 1),
                                       inputs, nullptr);
  }
  output.parameters = state.core_bytes;
  output.parameters += state.encoder_bytes;
  state.free_encoders();
  output.seconds.load = std::exchange(state.load_seconds, 0);
  output.seconds.encode = seconds_since(start);

  start = Clock::now();
  const auto dtype = work.condition.prompt_embeds.scalar_type();
  work.transformer = state.transformer;
  work.latents = state.initial_latents(inputs, size, dtype, output);
  const int64_t multiple = size_multiple();
  const auto device = state.world->device();
  work.img_ids = flux::image_ids(size.height / multiple, size.width / multiple, dtype).to(device);
  work.txt_ids = at::zeros({work.condition.prompt_embeds.size(1), 3}, work.condition.prompt_embeds.options());
  state.scheduler.set_timesteps(inputs.num_inference_steps,
                                {.image_seq_len = work.latents.size(1), .sigmas = inputs.sigmas});
  work.scheduler = &state.scheduler;
  work.true_cfg_scale = inputs.true_cfg_scale;
  work.guidance_scale = inputs.guidance_scale;
  work.callback_on_step_end = inputs.callback_on_step_end;
  work.keep_latents = options.keep_latents;
  work.keep_transformer_inputs = options.keep_transformer_inputs;
  output.num_inference_steps = state.scheduler.timesteps().size(0);
  output.seconds.prepare = seconds_since(start);

  start = Clock::now();
  const auto latents = flux::denoise(work, *state.world, output);
  output.seconds.denoise = seconds_since(start);

  start = Clock::now();
  if (!options.skip_decode) state.decode(latents, size, output);
  output.seconds.decode = seconds_since(start);
  output.peak_remote_kv_bytes = peak_remote_kv_bytes(*state.transformer);
  output.communication_total = difference(state.world->counter().counts(), state.counts_before);
  state.counts_before = state.world->counter().counts();
  return output;
}

std::vector<Image> FluxPipeline::operator()(const FluxPipelineInputs& inputs) { return generate(inputs).images; }

}  // namespace pardiff
