#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/core/log.h>
#include <pardiff/core/trace.h>
#include <pardiff/io/model_folder.h>
#include <pardiff/io/variant.h>
#include <pardiff/models/apply.h>
#include <pardiff/pipelines/flux_pipeline.h>
#include <pardiff/pipelines/part_classes.h>

#include <algorithm>
#include <random>
#include <set>

#include "models/weights_on_demand.h"
#include "pipelines/flux_batch.h"
#include "pipelines/flux_denoise.h"
#include "pipelines/flux_inputs_check.h"
#include "pipelines/flux_latents.h"
#include "pipelines/flux_memory.h"
#include "pipelines/flux_saving.h"
#include "pipelines/flux_text.h"
#include "pipelines/part_loading.h"
#include "pipelines/run_identity.h"
#include "pipelines/sha256.h"
#include "pipelines/stopwatch.h"

namespace pardiff {
namespace {

constexpr int64_t kDefaultLatents = 128;  // along a side
constexpr int64_t kIdAxes = 3;

int64_t random_seed() { return std::random_device()(); }

FlowMatchEulerDiscreteScheduler scheduler_of(const std::filesystem::path& folder, const FluxPipelineOptions& options) {
  if (options.scheduler) return *options.scheduler;
  const auto file = ConfigFile::open(folder / "scheduler" / "scheduler_config.json");
  return FlowMatchEulerDiscreteScheduler(FlowMatchEulerConfig::from_file(file));
}

OpenedPart<FluxTransformer2DModel> open_transformer(const std::filesystem::path& folder,
                                                    const FluxPipelineOptions& options) {
  if (options.transformer) return {options.transformer};
  auto files = options.transformer_file.empty()
                   ? open_pipeline_part(folder / "transformer", "diffusion_pytorch_model", options.variant)
                   : PartFiles{ConfigFile::open(folder / "transformer" / "config.json"),
                               Checkpoint::open_file(options.transformer_file)};
  const auto config = FluxTransformerConfig::from_file(files.config);
  return {FluxTransformer2DModel(config, kPlaceholders), std::move(files.checkpoint)};
}

OpenedPart<AutoencoderKL> open_vae(const std::filesystem::path& folder, const FluxPipelineOptions& options) {
  if (options.vae) return {options.vae};
  auto files = open_pipeline_part(folder / "vae", "diffusion_pytorch_model", options.variant);
  const auto config = AutoencoderKLConfig::from_file(files.config);
  return {AutoencoderKL(config, kPlaceholders, AutoencoderParts::kDecoder), std::move(files.checkpoint)};
}

std::set<std::string> parts_brought_along(const FluxPipelineOptions& options) {
  std::set<std::string> parts;
  if (options.scheduler) parts.insert("scheduler");
  if (options.tokenizer) parts.insert("tokenizer");
  if (options.tokenizer_2) parts.insert("tokenizer_2");
  if (options.text_encoder) parts.insert("text_encoder");
  if (options.text_encoder_2) parts.insert("text_encoder_2");
  if (options.transformer) parts.insert("transformer");
  if (options.vae) parts.insert("vae");
  return parts;
}

void check_classes(const std::filesystem::path& folder, const FluxPipelineOptions& options) {
  const auto index = ConfigFile::open(folder / "model_index.json");
  check<ConfigError>(index.class_name() == "FluxPipeline", index.origin(), " is of a '", index.class_name(),
                     "', and this is FluxPipeline. Give the folder of a FLUX model.");
  const auto foreign = foreign_parts(index, parts_brought_along(options));
  if (foreign.empty()) return;
  const auto& part = foreign.front();
  fail<ConfigError>(index.origin(), " has ", part.class_name, " for its ", part.name, ", and FluxPipeline takes ",
                    joined(part.takes, " or "), ". Give the folder of a FLUX model, or bring this part along.");
}

// Parts without the variant are read from their plain files, which is said once.
void check_variant(const std::filesystem::path& folder, const FluxPipelineOptions& options, bool warns) {
  if (options.variant.empty()) return;
  std::vector<std::string> with, without;
  const auto sort_in = [&](bool brought, const char* part, const char* stem) {
    if (!brought) (has_weights(folder / part, stem, options.variant) ? with : without).emplace_back(part);
  };
  sort_in(!options.transformer.is_empty() || !options.transformer_file.empty(), "transformer",
          "diffusion_pytorch_model");
  sort_in(!options.vae.is_empty(), "vae", "diffusion_pytorch_model");
  sort_in(!options.text_encoder.is_empty(), "text_encoder", "model");
  sort_in(!options.text_encoder_2.is_empty(), "text_encoder_2", "model");
  check<CheckpointError>(!with.empty() || without.empty(), "no part of ", folder.string(), " has files of variant '",
                         options.variant, "'. Leave the variant off, or give one that is there.");
  if (warns && !without.empty()) {
    warn(text_of("there are no files of variant '", options.variant, "' for ", joined(without),
                 ": the plain ones are read."));
  }
}

void check_fit(const char* what, int64_t taken, const char* from, int64_t given) {
  check<ConfigError>(taken == given, "the transformer's ", what, " is ", taken, ", and ", from, " is ", given,
                     ". These parts are not of one model; take them all from one checkpoint.");
}

std::string description(const ParallelConfig& config) {
  const auto context = config.context_parallel_config.value_or(ContextParallelConfig{});
  return text_of("ring ", context.ring(), ", ulysses ", context.ulysses(), ", rotate ", context.rotate_method,
                 ", convert_to_fp32 ", context.convert_to_fp32, ", ulysses_anything ", context.ulysses_anything,
                 ", ring_anything ", context.ring_anything, ", tp ",
                 config.tensor_parallel_config ? config.tensor_parallel_config->degree() : 1, ", cfg ",
                 config.cfg_degree, ", dp ", config.dp_degree, ", fsdp ", config.fsdp_degree, ", weights over ",
                 joined(config.weight_axes()));
}

// What makes ranks' pictures differ beside the inputs.
std::string description(const FluxTransformerConfig& config, at::ScalarType dtype) {
  return text_of(dtype, " ", sha256(config.to_json()).substr(0, 16));
}

}  // namespace

struct FluxPipeline::State {
  State(const std::filesystem::path& source, const FluxPipelineOptions& options, World& ranks)
      : folder(source),
        loaded_with(options),
        world(ranks),
        scheduler(scheduler_of(folder, options)),
        text(folder, options, ranks),
        transformer(open_transformer(folder, options)),
        vae(open_vae(folder, options)) {
    const auto& config = transformer.model->config();
    const int64_t latents = vae.model->config().latent_channels;
    check_fit("in_channels", config.in_channels, "four times the VAE's latent_channels", 4 * latents);
    check_fit("out_channels", config.out_channels.value_or(config.in_channels), "its in_channels", config.in_channels);
    check_fit("joint_attention_dim", config.joint_attention_dim, "the T5 encoder's d_model", text.prompt_dim());
    check_fit("pooled_projection_dim", config.pooled_projection_dim, "the CLIP encoder's hidden_size",
              text.pooled_dim());
    check_fit("number of RoPE axes", static_cast<int64_t>(config.axes_dims_rope.size()), "that of a picture's ids",
              kIdAxes);
  }

  void load(const FluxPipelineOptions& options);
  RunIdentity identity(const FluxPipelineOptions& options) const;
  void agree();
  void agree_on_call(const FluxPipelineInputs& inputs);

  void check_inputs(const FluxPipelineInputs& inputs) const;
  void check_tensors(const FluxPipelineInputs& inputs, const flux::Workload& work) const;
  flux::Workload workload(const FluxPipelineInputs& inputs) const;
  void arrange_groups(const FluxPipelineInputs& inputs);
  void warn_of(const FluxPipelineInputs& inputs, const flux::Workload& work) const;

  void encode(const FluxPipelineInputs& inputs, flux::Denoising& denoising, FluxPipelineOutput& output);
  void take_embeddings(const FluxPipelineInputs& inputs, flux::Denoising& denoising) const;
  void prepare(const FluxPipelineInputs& inputs, flux::Denoising& denoising, FluxPipelineOutput& output);
  void modulate(flux::Denoising& denoising, FluxPipelineOutput& output);
  at::Tensor initial_latents(const FluxPipelineInputs& inputs, FluxPipelineOutput& output);
  void decode(const at::Tensor& latents, const flux::BatchShare& batch, FluxPipelineOutput& output);
  at::Tensor decoded(const at::Tensor& unpacked, const ProcessGroup& ranks = {}) const;

  int64_t scale_factor() const { return vae.model->config().scale_factor(); }
  int64_t size_multiple() const { return 2 * scale_factor(); }
  at::ScalarType dtype() const;
  FluxTransformer2DModelImpl& network() const { return *transformer.model.ptr(); }

  std::filesystem::path folder;
  FluxPipelineOptions loaded_with;
  World& world;
  FlowMatchEulerDiscreteScheduler scheduler;
  flux::TextStage text;
  OpenedPart<FluxTransformer2DModel> transformer;
  OpenedPart<AutoencoderKL> vae;
  double load_seconds = 0;  // not yet reported
  std::map<std::string, OperationCount> counts_before{};
  RunIdentity not_agreed_on{};  // emptied once all ranks have compared it
};

RunIdentity FluxPipeline::State::identity(const FluxPipelineOptions& options) const {
  const auto& parallel = options.parallel_config.config();
  RunIdentity fields = {
      {"the version of pardiff", library_version()},
      {"whether and how the model is parallel", parallel ? description(*parallel) : "it is not"},
      {"the dtype", options.dtype ? text_of(*options.dtype) : "that of the files"},
      {"the attention backend", options.attention_backend.empty() ? "default" : options.attention_backend},
      {"the scheduler's config", sha256(scheduler.config().to_json()).substr(0, 16)}};
  add_identity(fields, "the transformer", transformer);
  add_identity(fields, "the VAE", vae);
  for (const auto& field : text.identity()) fields.push_back(field);
  return fields;
}

// Before the first collective of a call, whose sizes follow from these.
void FluxPipeline::State::agree_on_call(const FluxPipelineInputs& inputs) {
  agree();
  world.agree("the pipeline's inputs", flux::description(inputs));
  world.agree("the transformer", description(transformer.model->config(), dtype()));
}

void FluxPipeline::State::agree() { agree_on(std::exchange(not_agreed_on, {}), world); }

// What is wrong with any part is found before one is read.
void FluxPipeline::State::load(const FluxPipelineOptions& options) {
  if (!options.attention_backend.empty()) transformer.model->set_attention_backend(options.attention_backend);
  vae.check_files();
  text.check_files();
  transformer.check_files();
  vae.fill(options.dtype, world);
  transformer.defer(options.dtype, world, options.parallel_config.config());
  if (!options.keep_loaded) return;
  if (!network().is_parallel()) text.load();  // else each rank will load what falls to it
  network().need_weights();
}

// Known before the weights are read.
at::ScalarType FluxPipeline::State::dtype() const {
  const auto parameters = network().named_parameters();
  const auto& first = parameters.front();
  if (!transformer.checkpoint || !is_placeholder(first.value())) return first.value().scalar_type();
  const auto& files = *transformer.checkpoint;  // one of FLUX's first publication has other names
  return loaded_with.dtype.value_or(
      files.info(files.contains(first.key()) ? first.key() : files.names().front()).dtype);
}

FluxPipeline FluxPipeline::from_pretrained(const std::string& model, World& world, const FluxPipelineOptions& options) {
  const TracedSpan span("stage", "load");
  const Stopwatch watch;
  const at::NoGradGuard no_grad;
  const auto counts = world.counter().counts();
  const auto folder = resolve_model(model, options.revision);
  check_classes(folder, options);
  check_variant(folder, options, world.rank() == 0);
  if (const auto& config = options.parallel_config.config()) config->mesh(world.rank(), world.size());  // throws early
  auto state = std::make_unique<State>(folder, options, world);
  if (const auto& config = options.parallel_config.config()) {
    state->transformer.model->check_parallelism(*config, world);
  }
  state->not_agreed_on = state->identity(options);
  if (options.parallel_config.config()) state->agree();  // loading will communicate
  state->load(options);
  state->counts_before = counts;
  state->load_seconds = watch.seconds();
  return FluxPipeline(std::move(state));
}

FluxPipeline::FluxPipeline(std::unique_ptr<State> state) : state_(std::move(state)) {}
FluxPipeline::~FluxPipeline() = default;
FluxPipeline::FluxPipeline(FluxPipeline&& other) noexcept = default;
FluxPipeline& FluxPipeline::operator=(FluxPipeline&& other) noexcept = default;

void FluxPipeline::save_pretrained(const std::filesystem::path& folder, const SaveOptions& options) const {
  const at::NoGradGuard no_grad;
  const auto& state = *state_;
  const flux::SavedPipeline saved{.source = state.folder,
                                  .loaded_with = state.loaded_with,
                                  .transformer = state.transformer.model,
                                  .vae = state.vae.model,
                                  .scheduler = state.scheduler};
  flux::save_pipeline(saved, folder, state.world, options);
}

FluxTransformer2DModel FluxPipeline::transformer() const {
  state_->network().need_weights();
  return state_->transformer.model;
}
AutoencoderKL FluxPipeline::vae() const { return state_->vae.model; }
const FlowMatchEulerDiscreteScheduler& FluxPipeline::scheduler() const { return state_->scheduler; }
int64_t FluxPipeline::size_multiple() const { return state_->size_multiple(); }
void FluxPipeline::check_inputs(const FluxPipelineInputs& inputs) const { state_->check_inputs(inputs); }
void FluxPipeline::check_arguments(const FluxPipelineInputs& inputs) { flux::check_arguments(inputs); }
void FluxPipeline::check_layout(const FluxPipelineInputs& inputs, const ParallelConfig& config) {
  flux::check_batch(inputs, config);
}

flux::Workload FluxPipeline::State::workload(const FluxPipelineInputs& inputs) const {
  const int64_t multiple = size_multiple();
  const int64_t usual = kDefaultLatents * scale_factor();
  const int64_t rows = inputs.height.value_or(usual) / multiple, columns = inputs.width.value_or(usual) / multiple;
  check<UsageError>(rows > 0 && columns > 0, "the picture would be ", inputs.height.value_or(usual), "x",
                    inputs.width.value_or(usual), " pixels. The least is ", multiple, "x", multiple, ".");
  const auto share = context_share(network());
  const int64_t pictures = flux::picture_count(inputs), groups = flux::picture_groups(network());
  return {.pictures = pictures,
          .pictures_at_once = (pictures + groups - 1) / groups,
          .height = rows * multiple,
          .width = columns * multiple,
          .image_tokens = rows * columns,
          .text_tokens = inputs.prompt_embeds.defined() ? inputs.prompt_embeds.size(1) : inputs.max_sequence_length,
          .context_ranks = share ? share->group.size() : 1,
          .decoding_ranks = network().is_parallel() ? world.size() / groups : 1,
          .bytes_per_value = static_cast<int64_t>(c10::elementSize(dtype()))};
}

void FluxPipeline::State::check_tensors(const FluxPipelineInputs& inputs, const flux::Workload& work) const {
  const auto check_shape = [](const char* name, const at::Tensor& tensor, const std::vector<int64_t>& shape) {
    check<UsageError>(!tensor.defined() || tensor.sizes() == at::IntArrayRef(shape), name, " has shape ",
                      tensor.defined() ? tensor.sizes().vec() : shape, ", and this call needs ", shape, ".");
  };
  const auto& config = transformer.model->config();
  check_shape("latents (packed)", inputs.latents, {work.pictures, work.image_tokens, config.in_channels});
  const std::vector<int64_t> prompt_shape = {work.pictures, work.text_tokens, config.joint_attention_dim};
  const std::vector<int64_t> pooled_shape = {work.pictures, config.pooled_projection_dim};
  check_shape("prompt_embeds", inputs.prompt_embeds, prompt_shape);
  check_shape("pooled_prompt_embeds", inputs.pooled_prompt_embeds, pooled_shape);
  check_shape("negative_prompt_embeds", inputs.negative_prompt_embeds, prompt_shape);
  check_shape("negative_pooled_prompt_embeds", inputs.negative_pooled_prompt_embeds, pooled_shape);
}

void FluxPipeline::State::check_inputs(const FluxPipelineInputs& inputs) const {
  flux::check_arguments(inputs);
  const auto work = workload(inputs);
  check_tensors(inputs, work);
  if (const auto* config = network().parallel_config()) flux::check_batch(inputs, *config);
  flux::check_shares(network(), work.image_tokens, work.text_tokens);
  flux::check_memory(flux::least_memory(work, transformer.model->config(), vae.model->config()), work, world);
}

void FluxPipeline::State::warn_of(const FluxPipelineInputs& inputs, const flux::Workload& work) const {
  if (world.rank() != 0) return;
  const int64_t height = inputs.height.value_or(work.height), width = inputs.width.value_or(work.width);
  if (height != work.height || width != work.width) {
    warn(text_of("height and width must be multiples of ", size_multiple(), ": ", height, "x", width,
                 " is rounded down to ", work.height, "x", work.width, "."));
  }
  if (inputs.negative_prompt.given() && !flux::uses_true_cfg(inputs)) {
    warn(text_of("the negative prompt has no effect: true_cfg_scale is ", inputs.true_cfg_scale,
                 ", and works above 1."));
  }
}

// A call that failed may have left them folded.
void FluxPipeline::State::arrange_groups(const FluxPipelineInputs& inputs) {
  network().fold_fsdp_into_ring(false);
  check_inputs(inputs);
  const auto* config = network().parallel_config();
  if (!config || config->fsdp_degree == 1) return;
  const auto pictures = flux::picture_count(inputs);
  world.agree("the number of pictures", std::to_string(pictures));
  if (!flux::needs_folding(*config, pictures)) return;
  network().fold_fsdp_into_ring(true);
  check_inputs(inputs);  // a longer ring has another rule of lengths
}

// Every text goes through each encoder once, on whichever rank.
void FluxPipeline::State::encode(const FluxPipelineInputs& inputs, flux::Denoising& denoising,
                                 FluxPipelineOutput& output) {
  const TracedSpan span("stage", "encode");
  const bool negative_texts = flux::uses_true_cfg(inputs) && inputs.negative_prompt.given();
  // Rows of prompt_embeds are pictures, and so are then those of the negative prompt.
  const int64_t prompts = flux::prompt_count(inputs), copies = inputs.num_images_per_prompt;
  const auto tokens_of = [&](const Prompts& prompt, const Prompts& prompt_2) {
    return text.tokenize(flux::texts_for(prompt, {}, prompts), flux::texts_for(prompt_2, prompt, prompts),
                         inputs.max_sequence_length);
  };
  Stopwatch watch;
  flux::TokenIds ids, negative_ids;
  if (inputs.prompt.given()) ids = tokens_of(inputs.prompt, inputs.prompt_2);
  if (negative_texts) negative_ids = tokens_of(inputs.negative_prompt, inputs.negative_prompt_2);
  output.seconds.encode = watch.seconds();
  if (inputs.prompt.given() || negative_texts) {
    watch = {};
    const auto encoded =
        text.encode(ids.followed_by(negative_ids), dtype(), network().is_parallel(), output.seconds.load);
    const auto pictures = denoising.batch->pictures();
    const auto own_rows = [&](const at::Tensor& rows, int64_t first) {
      const auto of_pictures = rows.narrow(0, first, prompts).repeat_interleave(copies, 0);
      return of_pictures.narrow(0, pictures.start, pictures.length);
    };
    const auto own = [&](int64_t first) {
      return flux::Condition{own_rows(encoded.prompt_embeds, first), own_rows(encoded.pooled, first)};
    };
    const auto pass = denoising.batch->pass();
    if (inputs.prompt.given() && pass != flux::BatchShare::Pass::kNegative) denoising.condition = own(0);
    if (negative_texts && pass != flux::BatchShare::Pass::kPositive) {
      denoising.negative = own(inputs.prompt.given() ? prompts : 0);
    }
    output.seconds.encode += watch.seconds() - output.seconds.load;
  }
  text.release();
  output.clip_token_ids = ids.clip;
  output.t5_token_ids = ids.t5;
}

// Embeddings that were given instead of texts; then each pass finds its own where the loop looks for it.
void FluxPipeline::State::take_embeddings(const FluxPipelineInputs& inputs, flux::Denoising& denoising) const {
  const auto& batch = *denoising.batch;
  if (inputs.prompt_embeds.defined()) {
    denoising.condition = {batch.own(inputs.prompt_embeds), batch.own(inputs.pooled_prompt_embeds)};
  }
  if (flux::uses_true_cfg(inputs) && inputs.negative_prompt_embeds.defined()) {
    denoising.negative = {batch.own(inputs.negative_prompt_embeds), batch.own(inputs.negative_pooled_prompt_embeds)};
  }
  if (batch.pass() == flux::BatchShare::Pass::kNegative) denoising.condition = denoising.negative;
  if (batch.pass() != flux::BatchShare::Pass::kBoth) denoising.negative = {};
  denoising.condition = denoising.condition.to(world.device(), dtype());
  denoising.negative = denoising.negative.to(world.device(), dtype());
}

at::Tensor FluxPipeline::State::initial_latents(const FluxPipelineInputs& inputs, FluxPipelineOutput& output) {
  if (inputs.latents.defined()) return inputs.latents.to(at::kCPU, dtype());
  auto seeds = inputs.seed;
  if (!seeds.given()) seeds = Seeds(world.from_rank_0(world.rank() == 0 ? random_seed() : 0));
  output.seeds = seeds.values();
  const int64_t channels = vae.model->config().latent_channels, factor = scale_factor();
  return flux::pack(flux::draw_noise(seeds, flux::picture_count(inputs), channels, output.height / factor,
                                     output.width / factor, dtype()));
}

void FluxPipeline::State::prepare(const FluxPipelineInputs& inputs, flux::Denoising& denoising,
                                  FluxPipelineOutput& output) {
  const TracedSpan span("stage", "prepare");
  const Stopwatch watch;
  const auto latents = initial_latents(inputs, output);
  output.latents_sha256 = sha256(latents);
  world.agree("the initial latents", output.latents_sha256);

  take_embeddings(inputs, denoising);
  const auto device = world.device();
  denoising.latents = latents.to(device);
  const int64_t multiple = size_multiple();
  denoising.img_ids = flux::image_ids(output.height / multiple, output.width / multiple, dtype()).to(device);
  const auto& embeds = denoising.condition.prompt_embeds;
  denoising.txt_ids = at::zeros({embeds.size(1), kIdAxes}, embeds.options());
  scheduler.set_timesteps(flux::step_count(inputs), {.image_seq_len = latents.size(1), .sigmas = inputs.sigmas});
  output.num_inference_steps = scheduler.timesteps().size(0);
  output.seconds.prepare = watch.seconds();
}

// Latents [1, channels, height, width] as pixels [1, 3, height, width], float32 in 0..1, on the CPU. Collective:
// `ranks`.
at::Tensor FluxPipeline::State::decoded(const at::Tensor& unpacked, const ProcessGroup& ranks) const {
  auto& decoder = *vae.model.ptr();
  const auto wanted = decoder.parameters().front().scalar_type();
  const auto pixels = decoder.decode(decoder.unscaled(unpacked).to(wanted), ranks);  // about -1..1
  return (pixels * 0.5 + 0.5).clamp(0, 1).to(at::kCPU, at::kFloat);
}

// Of all steps before the first one; the weights for that then make room for those of the blocks, unless they are to be
// kept. Weights that are sharded over ranks come block by block, and each step's modulations with them.
void FluxPipeline::State::modulate(flux::Denoising& denoising, FluxPipelineOutput& output) {
  const TracedSpan span("stage", "modulate");
  Stopwatch watch;
  if (!network().weight_shards()) {
    network().need_modulation_weights();
    output.seconds.load += watch.seconds();
    watch = {};
    denoising.modulations =
        network().modulations(flux::conditions_of_steps(denoising), denoising.condition.pooled.size(0));
    if (!loaded_with.keep_loaded) network().release_modulation_weights();
    output.seconds.denoise += watch.seconds();
    watch = {};
    network().need_main_weights();
  } else {
    network().need_weights();
  }
  output.seconds.load += watch.seconds();
  if (transformer.checkpoint) output.transformer_bytes_copied = transformer.checkpoint->bytes_copied();
  output.parameters = transformer.bytes();
  output.parameters += vae.bytes();
  if (loaded_with.keep_loaded) output.parameters += text.bytes();
}

// One picture at a time: the decoder's planes are the largest tensors of the whole call.
void FluxPipeline::State::decode(const at::Tensor& latents, const flux::BatchShare& batch, FluxPipelineOutput& output) {
  const TracedSpan span("stage", "decode");
  const Stopwatch watch;
  const auto unpacked = flux::unpack(latents, output.height / scale_factor(), output.width / scale_factor());
  std::vector<at::Tensor> pictures;
  for (const auto& one : unpacked.split(1)) pictures.push_back(decoded(one, batch.decoding()));
  if (batch.leads()) output.image = batch.on_rank_0(at::cat(pictures));
  if (output.image.defined()) {
    for (const auto& picture : output.image.unbind(0)) output.images.push_back(Image::from_tensor(picture));
  }
  output.seconds.decode = watch.seconds();
}

FluxPipelineOutput FluxPipeline::generate(const FluxPipelineInputs& inputs, const GenerateOptions& options) {
  const at::NoGradGuard no_grad;
  auto& state = *state_;
  state.arrange_groups(inputs);
  const auto work = state.workload(inputs);
  state.warn_of(inputs, work);

  FluxPipelineOutput output;
  output.height = work.height;
  output.width = work.width;
  const flux::BatchShare batch(state.network(), work.pictures, state.world);
  flux::Denoising denoising{.transformer = state.transformer.model,
                            .batch = &batch,
                            .scheduler = &state.scheduler,
                            .true_cfg_scale = inputs.true_cfg_scale,
                            .guidance_scale = inputs.guidance_scale,
                            .callback_on_step_end = inputs.callback_on_step_end,
                            .keep_latents = options.keep_latents,
                            .keep_transformer_inputs = options.keep_transformer_inputs};
  state.agree_on_call(inputs);
  state.encode(inputs, denoising, output);
  state.prepare(inputs, denoising, output);
  state.modulate(denoising, output);
  const Stopwatch watch;
  const auto latents = flux::denoise(denoising, state.world, output);
  output.seconds.denoise += watch.seconds();
  if (batch.decodes() && !options.skip_decode) state.decode(latents, batch, output);

  output.peak_remote_kv_bytes = peak_remote_kv_bytes(*state.transformer.model);
  state.network().fold_fsdp_into_ring(false);
  output.seconds.load += std::exchange(state.load_seconds, 0);
  const auto weights = state.network().weight_bytes();
  output.transformer_parameter_bytes = weights.kept;
  output.peak_transformer_parameter_bytes = weights.peak;
  const auto counts = state.world.counter().counts();
  output.communication_total = difference(counts, std::exchange(state.counts_before, counts));
  return output;
}

std::vector<Image> FluxPipeline::preview(const at::Tensor& latents, int64_t height, int64_t width, int64_t side) const {
  const at::NoGradGuard no_grad;
  const auto& state = *state_;
  const int64_t rows = height / state.scale_factor(), columns = width / state.scale_factor();
  check<ShapeError>(latents.dim() == 3 && latents.size(1) * 4 == rows * columns && rows > 0 && columns > 0,
                    "latents are ", latents.sizes(), ", and a picture of ", height, "x", width, " pixels has [B, ",
                    rows * columns / 4, ", channels].");
  const int64_t most = std::max<int64_t>(1, side / state.scale_factor());
  const int64_t factor = (std::max(rows, columns) + most - 1) / most;
  const auto small =
      at::adaptive_avg_pool2d(flux::unpack(latents, rows, columns).to(at::kFloat),
                              {std::max<int64_t>(1, rows / factor), std::max<int64_t>(1, columns / factor)});
  std::vector<Image> images;
  for (const auto& one : small.split(1)) images.push_back(Image::from_tensor(state.decoded(one)[0]));
  return images;
}

std::vector<Image> FluxPipeline::operator()(const FluxPipelineInputs& inputs) { return generate(inputs).images; }

}  // namespace pardiff
