#include "pipelines/flux_text.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/core/log.h>

#include <iterator>
#include <sstream>

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

}  // namespace

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
  if (loaded_) return;
  if (!clip_.model || !t5_.model) open();
  clip_.fill(options_.dtype, *world_);
  t5_.fill(options_.dtype, *world_);
  bytes_ = clip_.bytes();
  bytes_ += t5_.bytes();
  loaded_ = true;
}

void TextStage::release() {
  if (options_.keep_loaded) return;
  clip_ = {};
  t5_ = {};
  loaded_ = false;
}

TokenIds TextStage::tokenize(const std::vector<std::string>& clip_texts, const std::vector<std::string>& t5_texts,
                             int64_t t5_length) const {
  const bool warns = world_->rank() == 0;
  return {ids_of(clip_tokenizer_, clip_texts, clip_tokenizer_.model_max_length(), "CLIP", warns),
          ids_of(t5_tokenizer_, t5_texts, static_cast<int>(t5_length), "T5", warns)};
}

Condition TextStage::encode(const TokenIds& ids, int64_t copies, const SequenceSpan& pictures) {
  const int64_t first = pictures.start / copies, last = (pictures.start + pictures.length - 1) / copies;
  const auto tokens = [&](const at::Tensor& rows) {
    return rows.narrow(0, first, last - first + 1).to(world_->device());
  };
  const auto own_rows = [&](const at::Tensor& encoded) {
    return encoded.repeat_interleave(copies, 0).narrow(0, pictures.start - first * copies, pictures.length);
  };
  return {own_rows(t5_.model->forward(tokens(ids.t5))), own_rows(clip_.model->forward(tokens(ids.clip)).pooler_output)};
}

}  // namespace pardiff::flux
