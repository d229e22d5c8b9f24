#include "text/byte_pair_encoding.h"

#include <pardiff/core/check.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <queue>
#include <tuple>
#include <unordered_set>

#include "io/file_bytes.h"
#include "io/json_text.h"
#include "text/unicode_text.h"

namespace pardiff {
namespace {

constexpr int64_t kLargestFile = 256 << 20;
constexpr const char* kWordEnd = "</w>";

// Fills the vocabulary while the file is parsed: one flat object needs no tree.
class VocabularyEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  VocabularyEvents(const std::string& origin, Vocabulary& vocabulary) : origin_(origin), vocabulary_(vocabulary) {}

  bool number_integer(number_integer_t value) override { refuse(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (!is_open_ || value > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) refuse(value);
    const auto id = static_cast<int32_t>(value);
    check<CheckpointError>(ids_.insert(id).second, "cannot use ", origin_, ": two tokens have the id ", id,
                           ", one of them ", quoted(token_), ". Fetch the file again.");
    check<CheckpointError>(vocabulary_.emplace(std::move(token_), id).second, "cannot use ", origin_,
                           ": one token stands there twice, the second time with the id ", id,
                           ". Fetch the file again.");
    return true;
  }
  bool key(string_t& name) override {
    token_ = std::move(name);
    return true;
  }
  bool start_object(std::size_t) override {
    if (is_open_) refuse("an object");
    is_open_ = true;
    return true;
  }
  bool end_object() override { return true; }
  bool null() override { refuse("null"); }
  bool boolean(bool value) override { refuse(value); }
  bool number_float(number_float_t, const string_t& text) override { refuse(text); }
  bool string(string_t& text) override { refuse(quoted(text)); }
  bool binary(binary_t&) override { refuse("binary"); }
  bool start_array(std::size_t) override { refuse("an array"); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    fail<CheckpointError>("cannot read ", origin_, ": ", why_no_json(position, error), " Fetch the file again.");
  }

 private:
  template <typename Value>
  [[noreturn]] void refuse(const Value& value) const {
    if (!is_open_) fail<CheckpointError>("cannot use ", origin_, ": it must hold an object from tokens to ids.");
    fail<CheckpointError>("cannot use ", origin_, ": the id of ", quoted(token_), " is ", value,
                          ". It must be an integer from 0 to ", std::numeric_limits<int32_t>::max(), ".");
  }

  const std::string& origin_;
  Vocabulary& vocabulary_;
  std::unordered_set<int32_t> ids_;
  std::string token_;
  bool is_open_ = false;
};

// A vocabulary spells every byte as one printable character: itself where it is one in Latin-1, otherwise the next of
// those from U+0100 on.
std::array<std::string, 256> byte_symbols() {
  std::array<std::string, 256> symbols;
  char32_t next_substitute = 256;
  for (std::size_t byte = 0; byte < symbols.size(); ++byte) {
    const bool is_printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    append_utf8(is_printable ? static_cast<char32_t>(byte) : next_substitute++, symbols[byte]);
  }
  return symbols;
}

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

// A symbol of the word being encoded; joined symbols form a list from left to right.
struct Symbol {
  int32_t id;
  int32_t previous, next;
  bool is_gone = false;
};

bool is_of_two_tokens(const std::string& token, const Vocabulary& vocabulary) {
  for (std::size_t length = 1; length < token.size(); ++length) {
    if (vocabulary.contains(token.substr(0, length)) && vocabulary.contains(token.substr(length))) return true;
  }
  return false;
}

// A trained vocabulary numbers tokens in the order of the merges that make them, so that it tells whether the file of
// merges has lost its end: the token after the last one made is then one that a merge should make. `made` by the
// merges, in their order.
void check_end_of_merges(const Vocabulary& vocabulary, const std::vector<int32_t>& made,
                         const std::filesystem::path& path) {
  for (std::size_t i = 1; i < made.size(); ++i) {
    if (made[i] != made[0] + static_cast<int32_t>(i)) return;  // numbered in another way
  }
  for (const auto& [token, id] : vocabulary) {
    const bool is_next = made.empty() || id == made.back() + 1;
    check<CheckpointError>(!is_next || !is_of_two_tokens(token, vocabulary), "cannot use ", path.string(), ": after ",
                           made.size(), " merges it ends, and vocab.json has the token ", quoted(token), " (", id,
                           "), which none of them makes. The file is cut off; fetch it again.");
  }
}

}  // namespace

Vocabulary read_vocabulary(const std::filesystem::path& path) {
  const std::string text = read_whole_file(path, kLargestFile);
  const std::string origin = path.string();
  Vocabulary vocabulary;
  VocabularyEvents events(origin, vocabulary);
  nlohmann::json::sax_parse(text, &events);
  check<CheckpointError>(!vocabulary.empty(), "cannot use ", origin, ": it has no tokens. Fetch the file again.");
  return vocabulary;
}

BytePairEncoding::BytePairEncoding(const Vocabulary& vocabulary, const std::filesystem::path& merges, int32_t unknown) {
  const auto id_of = [&](const std::string& token) {
    const auto entry = vocabulary.find(token);
    return entry == vocabulary.end() ? unknown : entry->second;
  };
  const auto symbols = byte_symbols();
  for (std::size_t byte = 0; byte < symbols.size(); ++byte) {
    byte_ids_[byte] = id_of(symbols[byte]);
    last_byte_ids_[byte] = id_of(symbols[byte] + kWordEnd);
  }
  read_merges(vocabulary, merges);
}

void BytePairEncoding::read_merges(const Vocabulary& vocabulary, const std::filesystem::path& path) {
  const std::string text = read_whole_file(path, kLargestFile);
  int32_t rank = 0;
  int64_t line_number = 0;
  std::vector<int32_t> made;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("#version")) continue;
    const std::size_t space = line.find(' ');
    check<CheckpointError>(space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos,
                           "cannot use ", path.string(), ": line ", line_number, " is ", quoted(line),
                           ". It must be two tokens with a space between them.");
    const std::string left(line.substr(0, space)), right(line.substr(space + 1));
    int32_t ids[3];
    int32_t* id = ids;
    for (const std::string& token : {left, right, left + right}) {
      const auto entry = vocabulary.find(token);
      check<CheckpointError>(entry != vocabulary.end(), "cannot use ", path.string(), ": line ", line_number,
                             " needs the token ", quoted(token),
                             ", which vocab.json lacks. The two files must come from one checkpoint.");
      *id++ = entry->second;
    }
    merges_[key_of(ids[0], ids[1])] = {rank++, ids[2]};
    made.push_back(ids[2]);
  }
  check_end_of_merges(vocabulary, made, path);
}

const BytePairEncoding::Merge* BytePairEncoding::find_merge(int32_t left, int32_t right) const {
  const auto entry = merges_.find(key_of(left, right));
  return entry == merges_.end() ? nullptr : &entry->second;
}

std::vector<Token> BytePairEncoding::encode(std::string_view word) const {
  std::vector<Symbol> symbols;
  const auto size = static_cast<int32_t>(word.size());
  symbols.reserve(word.size());
  for (int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<std::size_t>(i)]);
    const bool is_last = i + 1 == size;
    symbols.push_back({is_last ? last_byte_ids_[byte] : byte_ids_[byte], i - 1, is_last ? -1 : i + 1});
  }

  // Candidates by rank, then position. One whose symbols have changed since is dropped when its turn comes.
  using Candidate = std::tuple<int32_t, int32_t, int32_t>;  // rank, position, id
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto at = [&](int32_t position) -> Symbol& { return symbols[static_cast<std::size_t>(position)]; };
  const auto consider = [&](int32_t position) {
    if (position < 0 || at(position).next < 0) return;
    const Merge* const merge = find_merge(at(position).id, at(at(position).next).id);
    if (merge != nullptr) candidates.emplace(merge->rank, position, merge->id);
  };
  for (int32_t i = 0; i < size; ++i) consider(i);
  while (!candidates.empty()) {
    const auto [rank, position, id] = candidates.top();
    candidates.pop();
    Symbol& left = at(position);
    if (left.is_gone || left.next < 0) continue;
    Symbol& right = at(left.next);
    const Merge* const merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->rank != rank) continue;
    left.id = id;
    left.next = right.next;
    right.is_gone = true;
    if (left.next >= 0) at(left.next).previous = position;
    consider(left.previous);
    consider(position);
  }

  std::vector<Token> tokens;
  for (int32_t i = 0; i < size; ++i) {
    if (!at(i).is_gone) tokens.push_back({at(i).id, static_cast<std::size_t>(i)});
  }
  return tokens;
}

}  // namespace pardiff
