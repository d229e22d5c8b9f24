#include <pardiff/core/check.h>
#include <pardiff/text/clip_tokenizer.h>

#include "io/file_bytes.h"
#include "text/added_tokens.h"
#include "text/byte_pair_encoding.h"
#include "text/token_collector.h"
#include "text/tokenizer_config.h"
#include "text/unicode_text.h"

namespace pardiff {
namespace {

// NFC, each stretch of white space as one space, lower case.
DerivedText normalised(std::string_view text, std::size_t origin) {
  const DerivedText composed = to_nfc(text, origin);
  DerivedText result;
  result.text.reserve(composed.text.size());
  result.origins.reserve(composed.text.size());
  bool is_after_space = false;
  std::string lower;
  for (std::size_t position = 0; position < composed.text.size();) {
    const std::size_t source = composed.origins[position];
    const char32_t character = next_character(composed.text, position);
    const bool is_space = is_white_space(character);
    lower.clear();
    if (!is_space) {
      append_lower_case(character, lower);
    } else if (!is_after_space) {
      lower.push_back(' ');
    }
    result.append(lower, source);
    is_after_space = is_space;
  }
  return result;
}

enum class CharacterKind { kSpace, kLetter, kNumber, kOther };

CharacterKind kind_of(char32_t character) {
  if (is_white_space(character)) return CharacterKind::kSpace;
  if (is_letter(character)) return CharacterKind::kLetter;
  return is_number(character) ? CharacterKind::kNumber : CharacterKind::kOther;
}

// The end of the stretch of characters of one kind that starts at `begin`; every number stands alone.
std::size_t stretch_end(std::string_view text, std::size_t begin) {
  std::size_t end = begin;
  const CharacterKind kind = kind_of(next_character(text, end));
  if (kind == CharacterKind::kNumber) return end;
  for (std::size_t next = end; next < text.size(); end = next) {
    if (kind_of(next_character(text, next)) != kind) break;
  }
  return end;
}

// Contractions are words whatever follows: "'sun" is "'s" and "un".
std::size_t contraction_length(std::string_view text, std::size_t begin) {
  const std::string_view rest = text.substr(begin);
  for (const std::string_view contraction : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (rest.starts_with(contraction)) return contraction.size();
  }
  return 0;
}

// A special token's name that lower-casing has produced is no special token, but it is cut out by itself:
// "<|EndOfText|>!" gives "<|", "endoftext", "|>", "!" where "<|EndOfTexts|>!" gives "<|", "endoftexts", "|>!".
std::size_t lowered_name_length(std::string_view text, std::size_t begin) {
  for (const std::string_view name : {"<|startoftext|>", "<|endoftext|>"}) {
    if (text.substr(begin).starts_with(name)) return name.size();
  }
  return 0;
}

// Calls `take_word(begin, end)` for every word of normalised text.
template <typename TakeWord>
void for_each_word(std::string_view text, const TakeWord& take_word) {
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    constexpr std::size_t kBracket = 2;  // "<|" and "|>"
    if (const std::size_t name = lowered_name_length(text, begin); name > 0) {
      end = begin + name;
      take_word(begin, begin + kBracket);
      take_word(begin + kBracket, end - kBracket);
      take_word(end - kBracket, end);
    } else if (const std::size_t fixed = contraction_length(text, begin); fixed > 0) {
      end = begin + fixed;
      take_word(begin, end);
    } else {
      end = stretch_end(text, begin);
      if (text[begin] != ' ') take_word(begin, end);
    }
  }
}

}  // namespace

struct ClipTokenizer::State {
  State(const std::filesystem::path& folder, const TokenizerConfig& config, const Vocabulary& vocabulary);

  int32_t id_of(const std::string& token, const char* role, const Vocabulary& vocabulary) const;
  void add_text(std::string_view text, std::size_t origin, TokenCollector& tokens) const;
  void add_words(const DerivedText& text, std::size_t begin, std::size_t end, TokenCollector& tokens) const;

  std::filesystem::path folder;
  TokenizerConfig config;
  int32_t start_id, end_id, pad_id;
  BytePairEncoding encoding;
  AddedTokens added_tokens, normalised_added_tokens;
  int64_t vocab_size = 0;
};

ClipTokenizer::State::State(const std::filesystem::path& from, const TokenizerConfig& the_config,
                            const Vocabulary& vocabulary)
    : folder(from),
      config(the_config),
      start_id(id_of(config.bos_token, "bos_token", vocabulary)),
      end_id(id_of(config.eos_token, "eos_token", vocabulary)),
      pad_id(id_of(config.pad_token, "pad_token", vocabulary)),
      encoding(vocabulary, folder / "merges.txt", id_of(config.unk_token, "unk_token", vocabulary)) {
  std::vector<AddedToken> as_given, normalised_tokens;
  for (const auto& [content, id, is_normalised] : config.added_tokens) {
    const auto known = vocabulary.find(content);
    const AddedToken token{is_normalised ? normalised(content, 0).text : content,
                           known == vocabulary.end() ? id : known->second};
    (is_normalised ? normalised_tokens : as_given).push_back(token);
    vocab_size = std::max<int64_t>(vocab_size, token.id + 1);
  }
  for (const std::string& name : {config.bos_token, config.eos_token, config.unk_token, config.pad_token}) {
    const bool is_listed = std::any_of(config.added_tokens.begin(), config.added_tokens.end(),
                                       [&](const auto& entry) { return entry.content == name; });
    if (!is_listed) as_given.push_back({name, id_of(name, "a special token", vocabulary)});
  }
  added_tokens = AddedTokens(as_given);
  normalised_added_tokens = AddedTokens(normalised_tokens);
  for (const auto& [token, id] : vocabulary) vocab_size = std::max<int64_t>(vocab_size, int64_t{id} + 1);
}

int32_t ClipTokenizer::State::id_of(const std::string& token, const char* role, const Vocabulary& vocabulary) const {
  const auto entry = vocabulary.find(token);
  if (entry != vocabulary.end()) return entry->second;
  for (const auto& added : config.added_tokens) {
    if (added.content == token) return added.id;
  }
  fail<CheckpointError>("cannot use ", (folder / "vocab.json").string(), ": it lacks ", quoted(token), ", the ", role,
                        ". Fetch the file again.");
}

void ClipTokenizer::State::add_text(std::string_view text, std::size_t origin, TokenCollector& tokens) const {
  if (tokens.is_settled()) return;
  const DerivedText derived = normalised(text, origin);
  normalised_added_tokens.split(
      derived.text, [&](const AddedTokens::Match& match) { tokens.add(match.id, derived.origins[match.begin]); },
      [&](std::size_t begin, std::size_t end) { add_words(derived, begin, end, tokens); });
}

void ClipTokenizer::State::add_words(const DerivedText& text, std::size_t begin, std::size_t end,
                                     TokenCollector& tokens) const {
  const std::string_view part = std::string_view(text.text).substr(begin, end - begin);
  for_each_word(part, [&](std::size_t word_begin, std::size_t word_end) {
    if (tokens.is_settled()) return;
    for (const Token& token : encoding.encode(part.substr(word_begin, word_end - word_begin))) {
      tokens.add(token.id, text.origins[begin + word_begin + token.begin]);
    }
  });
}

ClipTokenizer ClipTokenizer::from_pretrained(const std::filesystem::path& folder) {
  TokenizerConfig defaults;
  defaults.bos_token = "<|startoftext|>";
  defaults.eos_token = defaults.unk_token = defaults.pad_token = "<|endoftext|>";
  defaults.model_max_length = 77;
  const TokenizerConfig config = read_tokenizer_config(folder, defaults);
  return ClipTokenizer(std::make_shared<const State>(folder, config, read_vocabulary(folder / "vocab.json")), folder);
}

TokenizedPrompt ClipTokenizer::encode(std::string_view text, int max_length) const {
  check<UsageError>(max_length >= 2, "cannot encode a prompt into ", max_length,
                    " CLIP tokens: its start and end take two. Ask for at least 2.");
  require_utf8(text);
  const auto length = static_cast<std::size_t>(max_length);
  TokenCollector tokens({state_->start_id}, length - 2);
  state_->added_tokens.split(
      text, [&](const AddedTokens::Match& match) { tokens.add(match.id, match.begin); },
      [&](std::size_t begin, std::size_t end) { state_->add_text(text.substr(begin, end - begin), begin, tokens); });
  return std::move(tokens).finish(text, state_->end_id, state_->pad_id, length);
}

int ClipTokenizer::model_max_length() const { return state_->config.model_max_length; }
int64_t ClipTokenizer::vocab_size() const { return state_->vocab_size; }

}  // namespace pardiff
