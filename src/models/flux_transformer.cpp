#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <pardiff/core/check.h>
#include <pardiff/core/trace.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/nn/recompute.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "io/mapped_reading.h"
#include "models/flux_blocks.h"
#include "models/weights_on_demand.h"

namespace pardiff {
namespace {

constexpr double kNormEps = 1e-6;
constexpr int64_t kSinusoidDim = 256;

// [1, S, axes] -> [S, axes]. Before anything is split, so that a plan cuts tokens and not the leading dimension.
at::Tensor without_batch(const at::Tensor& ids) {
  return ids.defined() && ids.dim() == 3 && ids.size(0) == 1 ? ids.squeeze(0) : ids;
}

void check_shape(const char* name, const at::Tensor& tensor, const std::vector<int64_t>& expected, const char* shape) {
  check<ShapeError>(tensor.defined(), name, " is missing. Give a tensor of shape ", shape, ".");
  bool fits = tensor.dim() == static_cast<int64_t>(expected.size());
  for (size_t dim = 0; fits && dim < expected.size(); ++dim) {
    fits = expected[dim] < 0 || tensor.size(static_cast<int64_t>(dim)) == expected[dim];  // negative: any size
  }
  check<ShapeError>(fits, name, " has the shape ", tensor.sizes(), ". Give ", shape, " = [", joined(expected),
                    "] (-1: any size).");
}

// One value for the whole batch, or one for each of it.
void check_per_sample(const char* name, const at::Tensor& tensor, int64_t batch) {
  check<ShapeError>(tensor.defined() && tensor.dim() == 1 && (tensor.size(0) == batch || tensor.size(0) == 1), name,
                    tensor.defined() ? text_of(" has the shape ", tensor.sizes()) : std::string(" is missing"),
                    ". Give [", batch, "]: one value for each of the batch.");
}

// A mixture of dtypes or devices would fail too, but deep inside and without a name.
void check_kind(const char* name, const at::Tensor& tensor, const at::Tensor& weight, bool is_computed_with) {
  if (!tensor.defined()) return;
  const bool fits =
      tensor.device() == weight.device() && (!is_computed_with || tensor.scalar_type() == weight.scalar_type() ||
                                             at::autocast::is_autocast_enabled(weight.device().type()));
  check<ShapeError>(fits, name, " is ", tensor.scalar_type(), " on ", tensor.device(), ", and the model is ",
                    weight.scalar_type(), " on ", weight.device(), ". Convert one to the other: ", name, ".to(...).");
}

// `inputs` are the streams, then the block's modulations, chunk by chunk.
std::vector<at::Tensor> run(flux::DoubleBlockImpl& block, const std::vector<at::Tensor>& inputs,
                            const flux::Call& call) {
  const auto chunks = inputs.begin() + 2, middle = chunks + (inputs.end() - chunks) / 2;
  const auto streams =
      block.forward({inputs[0], inputs[1]}, flux::Chunks(chunks, middle), flux::Chunks(middle, inputs.end()), call);
  return {streams.text, streams.image};
}

std::vector<at::Tensor> run(flux::SingleBlockImpl& block, const std::vector<at::Tensor>& inputs,
                            const flux::Call& call) {
  return {block.forward(inputs[0], flux::Chunks(inputs.begin() + 1, inputs.end()), call)};
}

// Those that the block itself uses: its modulations come from outside.
template <typename Block>
std::vector<at::Tensor> trained_parameters(const Block& block) {
  std::vector<at::Tensor> outside, trained;
  for (const auto& layer : block.modulation_layers()) {
    for (const auto& parameter : layer->parameters()) outside.push_back(parameter);
  }
  for (const auto& parameter : block.parameters()) {
    const bool is_outside = std::any_of(outside.begin(), outside.end(), [&](const at::Tensor& other) {
      return other.unsafeGetTensorImpl() == parameter.unsafeGetTensorImpl();
    });
    if (parameter.requires_grad() && !is_outside) trained.push_back(parameter);
  }
  return trained;
}

// `recompute`: the block keeps nothing of itself but what enters it.
template <typename Block>
std::vector<at::Tensor> run_block(const std::shared_ptr<Block>& block, std::vector<at::Tensor> inputs,
                                  const std::vector<flux::Chunks>& modulations, const flux::Call& call,
                                  bool recompute) {
  for (const auto& chunks : modulations) inputs.insert(inputs.end(), chunks.begin(), chunks.end());
  if (!recompute) return run(*block, inputs, call);
  const auto segment = [block, call](const std::vector<at::Tensor>& again) { return run(*block, again, call); };
  return nn::recomputed(segment, inputs, trained_parameters(*block));
}

// A block that computes its modulations itself; its inputs are the streams, then the condition.
template <typename Block>
nn::Segment with_modulations(const std::shared_ptr<Block>& block, const flux::Call& call) {
  return [block, call](std::vector<at::Tensor> inputs) {
    const auto condition = inputs.back();
    inputs.pop_back();
    for (const auto& chunks : nn::modulations(block->modulation_layers(), condition)) {
      inputs.insert(inputs.end(), chunks.begin(), chunks.end());
    }
    return run(*block, inputs, call);
  };
}

constexpr const char* kShardedModulations =
    "modulations cannot be computed beforehand where weights are sharded over ranks (shard_weights_over, "
    "fsdp_degree): a layer's weights come with its block. Leave modulations out of the inputs.";

std::vector<at::Tensor> modulation_parameters(const TimeTextEmbedding& embedding,
                                              const std::vector<nn::Modulation>& layers) {
  auto parameters = embedding->parameters();
  for (const auto& layer : layers) {
    for (const auto& parameter : layer->parameters()) parameters.push_back(parameter);
  }
  return parameters;
}

// What stands for all rows may have but one.
FluxTransformerInputs rows_of(const FluxTransformerInputs& conditions, int64_t start, int64_t length) {
  const auto some = [&](const at::Tensor& x) {
    return !x.defined() || x.size(0) == 1 ? x : x.narrow(0, start, length);
  };
  return {.pooled_projections = some(conditions.pooled_projections),
          .timestep = some(conditions.timestep),
          .guidance = some(conditions.guidance)};
}

// Neighbouring layers for every rank, of about the same width together.
std::vector<SequenceSpan> shares_of(const std::vector<nn::Modulation>& layers, int ranks) {
  int64_t total = 0, before = 0;
  for (const auto& layer : layers) total += layer->chunks();
  std::vector<SequenceSpan> shares(static_cast<size_t>(ranks));
  for (const auto& layer : layers) {
    const int64_t middle = 2 * before + layer->chunks();  // doubled
    ++shares[static_cast<size_t>(middle * ranks / (2 * total))].length;
    before += layer->chunks();
  }
  for (size_t rank = 1; rank < shares.size(); ++rank) {
    shares[rank].start = shares[rank - 1].start + shares[rank - 1].length;
  }
  return shares;
}

// Every rank's layers, one after the other in memory. `shape`: rows, width of a chunk.
FluxModulations gathered(const std::vector<at::Tensor>& own, const std::vector<nn::Modulation>& layers,
                         const std::vector<SequenceSpan>& shares, const std::pair<int64_t, int64_t>& shape,
                         const at::TensorOptions& options, const ProcessGroup& group) {
  const auto [rows, width] = shape;
  const auto elements = [&](const nn::Modulation& layer) { return rows * width * layer->chunks(); };
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (const auto& share : shares) {
    int64_t count = 0;
    for (int64_t i = 0; i < share.length; ++i) count += elements(layers[static_cast<size_t>(share.start + i)]);
    counts.push_back(count);
    total += count;
  }
  auto all = own.empty() ? at::empty({0}, options) : at::cat(own);
  if (group.size() > 1) {
    const auto mine = std::exchange(all, at::empty({total}, options));
    all_gather(all, mine, counts, group).wait();
  }
  FluxModulations result;
  int64_t start = 0;
  for (const auto& layer : layers) {
    result.layers.push_back(all.narrow(0, start, elements(layer)).view({rows, width * layer->chunks()}));
    start += elements(layer);
  }
  return result;
}

// `chunks`: scale, shift.
at::Tensor normed_out(const at::Tensor& image, const flux::Chunks& chunks) {
  return nn::modulated_norm(image, chunks[1], chunks[0], kNormEps);
}

}  // namespace

TimeTextEmbeddingImpl::TimeTextEmbeddingImpl(int64_t dim, int64_t pooled_dim, bool guidance,
                                             const nn::ParameterOptions& parameters)
    : torch::nn::Module("TimeTextEmbedding"),
      timestep_embedder(register_module("timestep_embedder", nn::ConditionEmbedding(kSinusoidDim, dim, parameters))),
      text_embedder(register_module("text_embedder", nn::ConditionEmbedding(pooled_dim, dim, parameters))) {
  if (!guidance) return;
  guidance_embedder = register_module("guidance_embedder", nn::ConditionEmbedding(kSinusoidDim, dim, parameters));
}

at::Tensor TimeTextEmbeddingImpl::forward(const at::Tensor& timestep, const at::Tensor& guidance,
                                          const at::Tensor& pooled) {
  const auto embed = [&](nn::ConditionEmbedding& embedder, const at::Tensor& value) {
    return embedder->forward(nn::sinusoid(value, kSinusoidDim).to(pooled.scalar_type()));
  };
  auto sum = embed(timestep_embedder, timestep);
  if (!guidance_embedder.is_empty()) sum = sum + embed(guidance_embedder, guidance);
  return sum + text_embedder->forward(pooled);
}

FluxTransformer2DModelImpl::FluxTransformer2DModelImpl(const FluxTransformerConfig& config,
                                                       const nn::ParameterOptions& parameters)
    : Model("FluxTransformer2DModel"), config_(config) {
  config_.validate();
  const int64_t dim = config_.inner_dim();
  const nn::LinearOptions options{.parameters = parameters};
  const std::vector<std::string> entering = {"hidden_states", "encoder_hidden_states", "img_ids", "txt_ids"};
  boundary_ = register_module("boundary", Boundary(entering));
  time_text_embed_ = register_module(
      "time_text_embed", TimeTextEmbedding(dim, config_.pooled_projection_dim, config_.guidance_embeds, parameters));
  context_embedder_ = register_module("context_embedder", nn::Linear(config_.joint_attention_dim, dim, options));
  x_embedder_ = register_module("x_embedder", nn::Linear(config_.in_channels, dim, options));
  transformer_blocks_ = register_module("transformer_blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < config_.num_layers; ++i)
    transformer_blocks_->push_back(flux::DoubleBlock(config_, parameters));
  single_transformer_blocks_ = register_module("single_transformer_blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < config_.num_single_layers; ++i) {
    single_transformer_blocks_->push_back(flux::SingleBlock(config_, parameters));
  }
  norm_out_ = register_module("norm_out", nn::Modulation(dim, 2, parameters));
  const int64_t out_channels = config_.out_channels.value_or(config_.in_channels);
  proj_out_ =
      register_module("proj_out", nn::Linear(dim, config_.patch_size * config_.patch_size * out_channels, options));
  modulation_weights_ = names_of(modulation_parameters(time_text_embed_, modulation_layers()));
}

at::Tensor FluxTransformer2DModelImpl::forward(const FluxTransformerInputs& whole_inputs) {
  const MappedReading reading;
  const bool is_modulated = whole_inputs.modulations.given();
  is_modulated ? need_main_weights() : need_weights();
  auto inputs = checked(whole_inputs);
  for (auto [name, tensor] : {std::pair{"hidden_states", &inputs.hidden_states},
                              {"encoder_hidden_states", &inputs.encoder_hidden_states},
                              {"img_ids", &inputs.img_ids},
                              {"txt_ids", &inputs.txt_ids}}) {
    *tensor = boundary_->enter(name, *tensor);
  }
  check_rotary(inputs);

  auto image = through(x_embedder_, inputs.hidden_states);
  observe("x_embedder", {image});
  const auto condition = is_modulated ? at::Tensor() : this->condition(inputs, image.scalar_type());
  auto text = through(context_embedder_, inputs.encoder_hidden_states);
  observe("context_embedder", {text});

  flux::Call call;
  call.rotary = inputs.rotary ? *inputs.rotary : rotary_table(inputs.txt_ids, inputs.img_ids);
  call.tokens = SequenceLayout::joint(boundary_->layout("encoder_hidden_states"), boundary_->layout("hidden_states"));
  call.text_length = text.size(1);
  if (observer_) observe("pos_embed", {call.rotary.cosines(), call.rotary.sines()});

  if (weight_shards()) {  // a modulation is computed in the turn of its block, when its weights are whole
    image = through_blocks(text, image, condition, {}, call);
    image = with_weights_of(*norm_out_,
                            [norm = norm_out_](const std::vector<at::Tensor>& in) {
                              return std::vector{normed_out(in[0], nn::modulations({norm}, in[1])[0])};
                            },
                            {image, condition})[0];
  } else {
    const auto modulations =
        is_modulated ? chunked(inputs.modulations) : nn::modulations(modulation_layers(), condition);
    image = through_blocks(text, image, condition, modulations, call);
    image = normed_out(image, modulations.back());
  }
  observe("norm_out", {image});
  const auto output = through(proj_out_, image);
  observe("proj_out", {output});
  reading.finish();
  return output;
}

// All of them at once: under tensor parallelism they share one gather.
std::vector<nn::Modulation> FluxTransformer2DModelImpl::modulation_layers() const {
  std::vector<nn::Modulation> layers;
  const auto add = [&](const std::vector<nn::Modulation>& more) {
    layers.insert(layers.end(), more.begin(), more.end());
  };
  for (const auto& block : *transformer_blocks_) add(block->as<flux::DoubleBlock>()->modulation_layers());
  for (const auto& block : *single_transformer_blocks_) add(block->as<flux::SingleBlock>()->modulation_layers());
  add({norm_out_});
  return layers;
}

at::Tensor FluxTransformer2DModelImpl::through(const nn::Linear& layer, const at::Tensor& x) const {
  const auto segment = [layer](const std::vector<at::Tensor>& in) {
    return std::vector{nn::Linear(layer)->forward(in[0])};
  };
  return with_weights_of(*layer, segment, {x})[0];
}

at::Tensor FluxTransformer2DModelImpl::through_blocks(at::Tensor text, at::Tensor image, const at::Tensor& condition,
                                                      const std::vector<flux::Chunks>& modulations,
                                                      const flux::Call& call) {
  const bool recompute = gradient_checkpointing_ && at::GradMode::is_enabled();
  auto modulation = modulations.begin();
  const auto pass = [&](const auto& block, std::vector<at::Tensor> streams) {
    if (modulations.empty()) {
      streams.push_back(condition);
      return with_weights_of(*block, with_modulations(block, call), streams);
    }
    const auto first = std::exchange(modulation, modulation + std::ssize(block->modulation_layers()));
    return run_block(block, std::move(streams), {first, modulation}, call, recompute);
  };
  int64_t index = 0;
  for (const auto& block : *transformer_blocks_) {
    const TracedSpan span("block", "transformer_blocks", index);
    const auto streams = pass(std::dynamic_pointer_cast<flux::DoubleBlockImpl>(block), {text, image});
    text = streams[0];
    image = streams[1];
    observe(text_of("transformer_blocks.", index++), {text, image});
  }
  if (single_transformer_blocks_->is_empty()) return image;

  const int64_t image_length = image.size(1);
  auto joint = at::cat({text, image}, 1);
  const auto image_part = [&] { return joint.narrow(1, call.text_length, image_length); };
  index = 0;
  for (const auto& block : *single_transformer_blocks_) {
    const TracedSpan span("block", "single_transformer_blocks", index);
    joint = pass(std::dynamic_pointer_cast<flux::SingleBlockImpl>(block), {joint})[0];
    observe(text_of("single_transformer_blocks.", index++), {joint.narrow(1, 0, call.text_length), image_part()});
  }
  return image_part();
}

FluxTransformerInputs FluxTransformer2DModelImpl::checked(const FluxTransformerInputs& inputs) const {
  auto result = inputs;
  result.img_ids = without_batch(inputs.img_ids);
  result.txt_ids = without_batch(inputs.txt_ids);
  const auto axes = static_cast<int64_t>(config_.axes_dims_rope.size());
  check_shape("hidden_states", result.hidden_states, {-1, -1, config_.in_channels},
              "[batch, image tokens, in_channels]");
  const int64_t batch = result.hidden_states.size(0);
  check_shape("encoder_hidden_states", result.encoder_hidden_states, {batch, -1, config_.joint_attention_dim},
              "[batch, text tokens, joint_attention_dim]");
  if (!result.rotary) {
    check_shape("img_ids", result.img_ids, {result.hidden_states.size(1), axes}, "[image tokens, axes]");
    check_shape("txt_ids", result.txt_ids, {result.encoder_hidden_states.size(1), axes}, "[text tokens, axes]");
  }
  const auto& weight = x_embedder_->weight;
  check_kind("hidden_states", result.hidden_states, weight, true);
  check_kind("encoder_hidden_states", result.encoder_hidden_states, weight, true);
  check_kind("img_ids", result.img_ids, weight, false);
  check_kind("txt_ids", result.txt_ids, weight, false);
  if (result.modulations.given()) {
    check_modulations(result.modulations, batch);
  } else {
    check_conditions(result, batch, weight);
  }
  return result;
}

void FluxTransformer2DModelImpl::check_conditions(const FluxTransformerInputs& inputs, int64_t batch,
                                                  const at::Tensor& weight) const {
  check_shape("pooled_projections", inputs.pooled_projections, {batch, config_.pooled_projection_dim},
              "[batch, pooled_projection_dim]");
  check_per_sample("timestep", inputs.timestep, batch);
  check<ConfigError>(config_.guidance_embeds || !inputs.guidance.defined(),
                     "guidance is given, and this model has no guidance embedding (guidance_embeds is false). Leave it "
                     "out, or use true classifier-free guidance.");
  check<ConfigError>(!config_.guidance_embeds || inputs.guidance.defined(),
                     "guidance is missing, and this model has a guidance embedding (guidance_embeds is true). Give a "
                     "tensor of shape [batch].");
  if (config_.guidance_embeds) check_per_sample("guidance", inputs.guidance, batch);
  check_kind("pooled_projections", inputs.pooled_projections, weight, true);
  check_kind("timestep", inputs.timestep, weight, false);
  check_kind("guidance", inputs.guidance, weight, false);
}

void FluxTransformer2DModelImpl::check_modulations(const FluxModulations& modulations, int64_t batch) const {
  check<ConfigError>(!weight_shards(), kShardedModulations);
  const auto layers = modulation_layers();
  check<ShapeError>(layers.size() == modulations.layers.size(), "modulations has ", modulations.layers.size(),
                    " layers, and this model ", layers.size(), ". Give what its `modulations` returned.");
  for (size_t i = 0; i < layers.size(); ++i) {
    check_shape("modulations", modulations.layers[i], {batch, layers[i]->chunks() * config_.inner_dim()},
                "[batch, chunks x dim]");
    check_kind("modulations", modulations.layers[i], x_embedder_->weight, true);
  }
}

void FluxTransformer2DModelImpl::check_rotary(const FluxTransformerInputs& own) const {
  if (!own.rotary) return;
  const int64_t tokens = own.encoder_hidden_states.size(1) + own.hidden_states.size(1);
  check<ShapeError>(own.rotary->rotation.size(0) == tokens, "rotary has ", own.rotary->rotation.size(0),
                    " rows, and this rank computes with ", tokens,
                    " tokens. Give the table of its own tokens, or leave it out.");
}

nn::RotaryTable FluxTransformer2DModelImpl::rotary_table(const at::Tensor& txt_ids, const at::Tensor& img_ids) const {
  return nn::rotary_table(at::cat({txt_ids, img_ids}), config_.axes_dims_rope);
}

at::Tensor FluxTransformer2DModelImpl::condition(const FluxTransformerInputs& inputs, at::ScalarType dtype) {
  const auto time = time_embedding(inputs, dtype);
  observe("time_text_embed", {time});
  return at::silu(time);
}

FluxModulations FluxModulations::rows(int64_t start, int64_t length) const {
  FluxModulations some;
  for (const auto& layer : layers) some.layers.push_back(layer.narrow(0, start, length));
  return some;
}

std::vector<flux::Chunks> FluxTransformer2DModelImpl::chunked(const FluxModulations& modulations) const {
  const auto layers = modulation_layers();
  std::vector<flux::Chunks> chunks;
  for (size_t i = 0; i < layers.size(); ++i) {
    chunks.push_back(modulations.layers[i].unsqueeze(1).chunk(layers[i]->chunks(), -1));
  }
  return chunks;
}

FluxModulations FluxTransformer2DModelImpl::modulations(const FluxTransformerInputs& conditions, int64_t batch) {
  check<ConfigError>(!weight_shards(), kShardedModulations);
  const MappedReading reading;
  need_modulation_weights();
  const auto& pooled = conditions.pooled_projections;
  const int64_t rows = pooled.defined() && pooled.dim() == 2 ? pooled.size(0) : -1;
  check_conditions(conditions, rows, time_text_embed_->text_embedder->parameters().front());
  const int64_t at_once = batch > 0 ? batch : rows;
  check<ShapeError>(rows > 0 && rows % at_once == 0, "modulations of ", rows, " rows, ", at_once,
                    " at once. Give a batch that divides the rows.");
  std::vector<at::Tensor> parts;
  for (int64_t start = 0; start < rows; start += at_once) {
    parts.push_back(condition(rows_of(conditions, start, at_once), pooled.scalar_type()));
  }
  const auto all = at::cat(parts);
  const auto shares = modulation_shares();
  std::vector<at::Tensor> flat;
  for (const auto& chunks : nn::modulations(shares.own, all, at_once)) flat.push_back(at::cat(chunks, -1).flatten());
  auto result =
      gathered(flat, modulation_layers(), shares.spans, {rows, config_.inner_dim()}, all.options(), shares.group);
  reading.finish();
  return result;
}

FluxTransformer2DModelImpl::ModulationShares FluxTransformer2DModelImpl::modulation_shares() const {
  ModulationShares shares;
  const auto context = Boundary(boundary_)->edge().share();
  if (context && !at::GradMode::is_enabled()) shares.group = context->group;
  const auto layers = modulation_layers();
  shares.spans = shares_of(layers, shares.group.size());
  const auto own = shares.spans[static_cast<size_t>(shares.group.rank())];
  shares.own.assign(layers.begin() + own.start, layers.begin() + own.start + own.length);
  return shares;
}

void FluxTransformer2DModelImpl::need_main_weights() const {
  const auto& weights = weights_on_demand();
  if (weights) weights->read([this](const std::string& name) { return !modulation_weights_.contains(name); });
}

void FluxTransformer2DModelImpl::need_modulation_weights() const {
  const auto& weights = weights_on_demand();
  if (!weights) return;
  const auto names = names_of(modulation_parameters(time_text_embed_, modulation_shares().own));
  weights->read([&](const std::string& name) { return names.contains(name); });
}

std::set<std::string> FluxTransformer2DModelImpl::names_of(const std::vector<at::Tensor>& some) const {
  std::set<const at::TensorImpl*> wanted;
  for (const auto& parameter : some) wanted.insert(parameter.unsafeGetTensorImpl());
  std::set<std::string> names;
  for (const auto& parameter : named_parameters()) {
    if (wanted.contains(parameter.value().unsafeGetTensorImpl())) names.insert(parameter.key());
  }
  return names;
}

void FluxTransformer2DModelImpl::release_modulation_weights() {
  const auto& weights = weights_on_demand();
  if (weights) weights->give_back([this](const std::string& name) { return modulation_weights_.contains(name); });
}

at::Tensor FluxTransformer2DModelImpl::time_embedding(const FluxTransformerInputs& inputs, at::ScalarType dtype) {
  // The rounding to `dtype`, before and after the product, is the reference's: bfloat16 makes 3504 of guidance 3.5.
  const auto thousandfold = [&](const at::Tensor& value) { return value.defined() ? value.to(dtype) * 1000 : value; };
  const auto timestep = thousandfold(inputs.timestep), guidance = thousandfold(inputs.guidance);
  std::vector<at::Tensor> used = {inputs.pooled_projections, timestep};
  if (guidance.defined()) used.push_back(guidance);
  return with_weights_of(
      *time_text_embed_,
      [embed = time_text_embed_](const std::vector<at::Tensor>& in) {
        return std::vector{TimeTextEmbedding(embed)->forward(in[1], in.size() > 2 ? in[2] : at::Tensor(), in[0])};
      },
      used)[0];
}

void FluxTransformer2DModelImpl::observe(const std::string& module, const std::vector<at::Tensor>& outputs) const {
  if (observer_) observer_(module, outputs);
}

ContextParallelPlan FluxTransformer2DModelImpl::context_parallel_plan() const {
  const ContextParallelInput tokens{.split_dim = 1, .expected_dims = 3}, ids{.split_dim = 0, .expected_dims = 2};
  return {
      {"", {{"hidden_states", tokens}, {"encoder_hidden_states", tokens}, {"img_ids", ids}, {"txt_ids", ids}}},
      {"proj_out", ContextParallelOutput{.gather_dim = 1, .expected_dims = 3}},
  };
}

std::vector<std::shared_ptr<torch::nn::Module>> FluxTransformer2DModelImpl::weight_units() const {
  std::vector<std::shared_ptr<torch::nn::Module>> units = {x_embedder_.ptr(), time_text_embed_.ptr(),
                                                           context_embedder_.ptr()};
  units.insert(units.end(), transformer_blocks_->begin(), transformer_blocks_->end());
  units.insert(units.end(), single_transformer_blocks_->begin(), single_transformer_blocks_->end());
  units.push_back(norm_out_.ptr());
  units.push_back(proj_out_.ptr());
  return units;
}

TensorParallelPlan FluxTransformer2DModelImpl::tensor_parallel_plan() const {
  TensorParallelPlan plan;
  for (const auto* name :
       {"norm1.linear", "norm1_context.linear", "attn.to_q", "attn.to_k", "attn.to_v", "attn.add_q_proj",
        "attn.add_k_proj", "attn.add_v_proj", "ff.net.0.proj", "ff_context.net.0.proj"}) {
    if (config_.num_layers > 0) plan.emplace(text_of("transformer_blocks.*.", name), "colwise");
  }
  for (const auto* name : {"attn.to_out.0", "attn.to_add_out", "ff.net.2", "ff_context.net.2"}) {
    if (config_.num_layers > 0) plan.emplace(text_of("transformer_blocks.*.", name), "rowwise");
  }
  for (const auto* name : {"norm.linear", "attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"}) {
    if (config_.num_single_layers > 0) plan.emplace(text_of("single_transformer_blocks.*.", name), "colwise");
  }
  // Its input is the attention's output beside the feed-forward's: each rank has its part of both.
  if (config_.num_single_layers > 0) {
    plan.emplace("single_transformer_blocks.*.proj_out", TensorParallelStyle::packed_rowwise({1, 4}));
  }
  plan.emplace("norm_out.linear", "colwise");
  return plan;
}

std::vector<std::string> FluxTransformer2DModelImpl::modules_on_local_heads() const {
  std::vector<std::string> keys;
  for (const auto* norm : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"}) {
    if (config_.num_layers > 0) keys.push_back(text_of("transformer_blocks.*.attn.", norm));
  }
  for (const auto* norm : {"norm_q", "norm_k"}) {
    if (config_.num_single_layers > 0) keys.push_back(text_of("single_transformer_blocks.*.attn.", norm));
  }
  return keys;
}

}  // namespace pardiff
