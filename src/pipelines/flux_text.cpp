#include "pipelines/flux_text.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/core/log.h>

#include <functional>
#include <iterator>
#include <sstream>

#include "nn/token_shares.h"
#include "pipelines/stopwatch.h"

namespace pardiff::flux {
namespace {

constexpr std::size_t kMostCharactersShown = 160;

// The text in quotes, or its first words and how many more there are. Some languages write words without spaces, so
// that there may be but one.
std::string beginning_of(const std::string& text) {
  if (text.size() <= kMostCharactersShown) return text_of("\"", text, "\".");
  auto end = text.find_last_of(" \n\t", kMostCharactersShown);
  if (end == std::string::npos || end == 0) end = kMostCharactersShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not within a character
  std::istringstream rest(text.substr(end));
  const auto words = std::distance(std::istream_iterator<std::string>(rest), {});
  return text_of("\"", text.substr(0, end), "\" and ", words, words == 1 ? " more word." : " more words.");
}

template <typename Tokenizer>
at::Tensor ids_of(const Tokenizer& tokenizer, const std::vector<std::string>& texts, int length, const char* encoder,
                  bool warns) {
  std::vector<at::Tensor> rows;
  for (const auto& text : texts) {
    const auto tokens = tokenizer.encode(text, length);
    rows.push_back(at::tensor(tokens.ids, at::kLong));
    if (!warns || tokens.cut_off.empty()) continue;
    warn(text_of("the ", encoder, " encoder takes ", length,
                 " tokens; cut off from the prompt: ", beginning_of(tokens.cut_off)));
  }
  return at::stack(rows);
}

// The same shares, dealt from the last rank on.
SequenceLayout from_the_last(const SequenceLayout& layout) {
  std::vector<int64_t> lengths;
  for (int rank = layout.ranks(); rank-- > 0;) lengths.push_back(layout.local_length(rank));
  return SequenceLayout::of_lengths(lengths);
}

// What one rank cannot do fails everywhere: the others would wait for its part.
void all_or_none(World& world, bool shared, const std::function<void()>& work) {
  if (!shared) return work();
  std::string error;
  try {
    work();
  } catch (const CommError&) {
    throw;  // nobody is left to be told
  } catch (const std::exception& reason) {
    error = reason.what();
  }
  for (const auto& text : world.texts_of_all(error)) check<CheckpointError>(text.empty(), text);
}

}  // namespace

TokenIds TokenIds::followed_by(const TokenIds& others) const {
  if (!others.t5.defined()) return *this;
  if (!t5.defined()) return others;
  return {at::cat({clip, others.clip}), at::cat({t5, others.t5})};
}

TextStage::TextStage(const std::filesystem::path& folder, const FluxPipelineOptions& options, World& world)
    : folder_(folder),
      options_(options),
      world_(&world),
      clip_tokenizer_(options.tokenizer ? *options.tokenizer : ClipTokenizer::from_pretrained(folder / "tokenizer")),
      t5_tokenizer_(options.tokenizer_2 ? *options.tokenizer_2 : T5Tokenizer::from_pretrained(folder / "tokenizer_2")) {
  open();
  add_identity(identity_, "the CLIP encoder", clip_);
  add_identity(identity_, "the T5 encoder", t5_);
  prompt_dim_ = t5_.model->config().d_model;
  pooled_dim_ = clip_.model->config().hidden_size;
  const int64_t places = clip_.model->config().max_position_embeddings;
  check<ConfigError>(clip_tokenizer_.model_max_length() <= places, "the CLIP tokenizer gives ",
                     clip_tokenizer_.model_max_length(), " tokens, and its encoder has places for ", places,
                     ". They are not of one checkpoint.");
}

void TextStage::open() {
  clip_.model = options_.text_encoder;
  t5_.model = options_.text_encoder_2;
  if (!clip_.model) {
    auto files = open_pipeline_part(folder_ / "text_encoder", "model", options_.variant);
    clip_ = {ClipTextModel(ClipTextConfig::from_file(files.config), kPlaceholders), std::move(files.checkpoint)};
  }
  if (!t5_.model) {
    auto files = open_pipeline_part(folder_ / "text_encoder_2", "model", options_.variant);
    t5_ = {T5EncoderModel(T5Config::from_file(files.config), kPlaceholders), std::move(files.checkpoint)};
  }
}

void TextStage::check_files() const {
  clip_.check_files();
  t5_.check_files();
}

void TextStage::load() {
  load_clip();
  load_t5();
}

void TextStage::load_clip() {
  if (has_clip_) return;
  if (!clip_.model) open();
  clip_.fill(options_.dtype, *world_);
  has_clip_ = true;
}

void TextStage::load_t5() {
  if (has_t5_) return;
  if (!t5_.model) open();
  t5_.fill(options_.dtype, *world_);
  has_t5_ = true;
}

void TextStage::release() {
  if (options_.keep_loaded) return;
  clip_ = {};
  t5_ = {};
  has_clip_ = has_t5_ = false;
}

ParameterBytes TextStage::bytes() const {
  ParameterBytes bytes;
  if (has_clip_) bytes += clip_.bytes();
  if (has_t5_) bytes += t5_.bytes();
  return bytes;
}

TokenIds TextStage::tokenize(const std::vector<std::string>& clip_texts, const std::vector<std::string>& t5_texts,
                             int64_t t5_length) const {
  const bool warns = world_->rank() == 0;
  return {ids_of(clip_tokenizer_, clip_texts, clip_tokenizer_.model_max_length(), "CLIP", warns),
          ids_of(t5_tokenizer_, t5_texts, static_cast<int>(t5_length), "T5", warns)};
}

// Row by row: what a text becomes then does not depend on the texts beside it, nor on the number of ranks.
Condition TextStage::encode(const TokenIds& ids, at::ScalarType dtype, bool shared, double& load_seconds) {
  const auto ranks = shared ? world_->group() : ProcessGroup();
  const auto t5_rows = SequenceLayout::split(ids.t5.size(0), ranks.size()), clip_rows = from_the_last(t5_rows);
  const auto options = at::TensorOptions().dtype(dtype).device(world_->device());
  const auto own_t5 = t5_rows.spans(ranks.rank()).front(), own_clip = clip_rows.spans(ranks.rank()).front();
  auto prompt_embeds = at::empty({own_t5.length, ids.t5.size(1), prompt_dim_}, options);
  auto pooled = at::empty({own_clip.length, pooled_dim_}, options);
  all_or_none(*world_, shared, [&] {
    const Stopwatch watch;
    if (own_t5.length > 0) load_t5();
    if (own_clip.length > 0) load_clip();
    load_seconds += watch.seconds();
    for (int64_t row = 0; row < own_t5.length; ++row) {
      const auto tokens = ids.t5.narrow(0, own_t5.start + row, 1).to(world_->device());
      prompt_embeds[row].copy_(t5_.model->forward(tokens)[0]);
    }
    for (int64_t row = 0; row < own_clip.length; ++row) {
      const auto tokens = ids.clip.narrow(0, own_clip.start + row, 1).to(world_->device());
      pooled[row].copy_(clip_.model->forward(tokens).pooler_output[0]);
    }
  });
  if (ranks.size() == 1) return {prompt_embeds, pooled};
  return {nn::gather_shares(prompt_embeds, 0, t5_rows, ranks), nn::gather_shares(pooled, 0, clip_rows, ranks)};
}

}  // namespace pardiff::flux
