#include <pardiff/core/check.h>
#include <pardiff/text/t5_tokenizer.h>

#include <set>

#include "io/file_bytes.h"
#include "text/added_tokens.h"
#include "text/precompiled_charsmap.h"
#include "text/sentencepiece_model.h"
#include "text/token_collector.h"
#include "text/tokenizer_config.h"
#include "text/unicode_text.h"
#include "text/unigram.h"

namespace pardiff {
namespace {

constexpr std::string_view kWordMark = "\u2581";  // stands for the space before a word

using Pieces = std::vector<std::pair<std::string, double>>;

// The pieces of the file, then the fill-in marks, which are counted backwards.
Pieces pieces_of(const SentencePieceModel& model, int extra_ids) {
  Pieces pieces;
  pieces.reserve(model.pieces.size() + static_cast<std::size_t>(extra_ids));
  for (const auto& piece : model.pieces) pieces.emplace_back(piece.text, piece.score);
  for (int i = extra_ids - 1; i >= 0; --i) pieces.emplace_back(text_of("<extra_id_", i, ">"), 0.0);
  return pieces;
}

int32_t id_of(const std::string& token, const char* role, const Pieces& pieces, const std::string& file) {
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].first == token) return static_cast<int32_t>(id);
  }
  fail<CheckpointError>("cannot use ", file, ": it lacks the piece ", quoted(token), ", the ", role,
                        ". Fetch the file again.");
}

}  // namespace

struct T5Tokenizer::State {
  State(const std::string& file, const TokenizerConfig& config, const SentencePieceModel& model, const Pieces& pieces);

  void add_text(std::string_view text, std::size_t origin, TokenCollector& tokens) const;
  void add_word(const DerivedText& text, std::size_t begin, std::size_t end, TokenCollector& tokens) const;

  TokenizerConfig config;
  int32_t end_id, pad_id;
  PrecompiledCharsmap charsmap;
  Unigram unigram;
  AddedTokens added_tokens;
  int64_t vocab_size;
};

T5Tokenizer::State::State(const std::string& file, const TokenizerConfig& the_config, const SentencePieceModel& model,
                          const Pieces& pieces)
    : config(the_config),
      end_id(id_of(config.eos_token, "eos_token", pieces, file)),
      pad_id(id_of(config.pad_token, "pad_token", pieces, file)),
      charsmap(model.charsmap, file),
      unigram(pieces, id_of(config.unk_token, "unk_token", pieces, file)),
      vocab_size(static_cast<int64_t>(pieces.size())) {
  std::vector<AddedToken> added;
  std::set<std::string_view> names = {config.eos_token, config.pad_token, config.unk_token};
  for (const auto& entry : config.added_tokens) {
    names.insert(entry.content);
    added.push_back({entry.content, entry.id});
    vocab_size = std::max<int64_t>(vocab_size, int64_t{entry.id} + 1);
  }
  // Later entries count where both name a token: an id of the vocabulary wins over one of the config.
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    const std::string& text = pieces[id].first;
    const bool is_symbol = id >= model.pieces.size() || model.pieces[id].is_symbol;
    if (is_symbol || names.contains(text)) added.push_back({text, static_cast<int32_t>(id)});
  }
  added_tokens = AddedTokens(added);
}

void T5Tokenizer::State::add_text(std::string_view text, std::size_t origin, TokenCollector& tokens) const {
  if (tokens.is_settled()) return;
  const DerivedText derived = charsmap.normalise(text, origin);
  const std::string_view all = derived.text;
  std::size_t begin = 0;
  for (std::size_t position = 0; position < all.size() && !tokens.is_settled();) {
    const std::size_t end = position;
    const char32_t character = next_character(all, position);
    const bool is_space = is_white_space(character);
    // A word mark inside a word starts another one, as the space does that it stands for.
    if (!is_space && (end == begin || !all.substr(end).starts_with(kWordMark))) continue;
    add_word(derived, begin, end, tokens);
    begin = is_space ? position : end;
  }
  add_word(derived, begin, all.size(), tokens);
}

void T5Tokenizer::State::add_word(const DerivedText& text, std::size_t begin, std::size_t end,
                                  TokenCollector& tokens) const {
  if (begin == end || tokens.is_settled()) return;
  const std::string_view word = std::string_view(text.text).substr(begin, end - begin);
  const std::size_t added_bytes = word.starts_with(kWordMark) ? 0 : kWordMark.size();
  for (const Token& token : unigram.encode(std::string(kWordMark.substr(0, added_bytes)).append(word))) {
    tokens.add(token.id, text.origins[begin + token.begin - std::min(token.begin, added_bytes)]);
  }
}

T5Tokenizer T5Tokenizer::from_pretrained(const std::filesystem::path& folder) {
  TokenizerConfig defaults;
  defaults.eos_token = "</s>";
  defaults.unk_token = "<unk>";
  defaults.pad_token = "<pad>";
  defaults.model_max_length = 512;
  defaults.extra_ids = 100;
  const TokenizerConfig config = read_tokenizer_config(folder, defaults);
  const std::filesystem::path path = folder / "spiece.model";
  const SentencePieceModel model = read_sentencepiece_model(path);
  return T5Tokenizer(std::make_shared<const State>(path.string(), config, model, pieces_of(model, config.extra_ids)),
                     folder);
}

TokenizedPrompt T5Tokenizer::encode(std::string_view text, int max_length) const {
  check<UsageError>(max_length >= 1, "cannot encode a prompt into ", max_length,
                    " T5 tokens: its end takes one. Ask for at least 1.");
  require_utf8(text);
  const auto length = static_cast<std::size_t>(max_length);
  TokenCollector tokens({}, length - 1);
  state_->added_tokens.split(
      text, [&](const AddedTokens::Match& match) { tokens.add(match.id, match.begin); },
      [&](std::size_t begin, std::size_t end) { state_->add_text(text.substr(begin, end - begin), begin, tokens); });
  return std::move(tokens).finish(text, state_->end_id, state_->pad_id, length);
}

int T5Tokenizer::model_max_length() const { return state_->config.model_max_length; }
int64_t T5Tokenizer::vocab_size() const { return state_->vocab_size; }

}  // namespace pardiff
