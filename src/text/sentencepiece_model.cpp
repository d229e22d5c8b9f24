#include "text/sentencepiece_model.h"

#include <pardiff/core/check.h>

#include <bit>
#include <cmath>
#include <string_view>
#include <unordered_set>

#include "io/file_bytes.h"
#include "text/unicode_text.h"

namespace pardiff {
namespace {

constexpr int64_t kLargestModel = 256 << 20;

// One protobuf message inside a file: its fields one after another.
class Message {
 public:
  Message(std::string_view bytes, std::size_t offset, const std::string& file)
      : bytes_(bytes), offset_(offset), file_(file) {}

  // Moves to the next field; false at the end.
  bool next() {
    if (position_ == bytes_.size()) return false;
    const uint64_t tag = varint();
    field_ = tag >> 3;
    wire_type_ = static_cast<int>(tag & 7);
    switch (wire_type_) {
      case kVarint:
        number_ = varint();
        return true;
      case kFixed64:
        text_ = take(8);
        return true;
      case kText:
        text_ = take(varint());
        return true;
      case kFixed32:
        text_ = take(4);
        return true;
      default:
        fail_here("a field of the unknown kind ", wire_type_);
    }
  }
  uint64_t field() const { return field_; }

  uint64_t number() const { return expect(kVarint), number_; }
  std::string_view text() const { return expect(kText), text_; }
  Message message() const {
    expect(kText);
    return Message(text_, offset_ + position_ - text_.size(), file_);
  }
  float real() const {
    expect(kFixed32);
    uint32_t bits = 0;  // little-endian
    for (std::size_t i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(static_cast<unsigned char>(text_[i])) << (8 * i);
    return std::bit_cast<float>(bits);
  }

 private:
  enum WireType { kVarint = 0, kFixed64 = 1, kText = 2, kFixed32 = 5 };

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail_here("a number without an end");
  }
  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - position_) fail_here("the end where ", size, " more bytes are expected");
    const std::string_view result = bytes_.substr(position_, size);
    position_ += size;
    return result;
  }
  void expect(WireType type) const {
    if (wire_type_ != type) fail_here("field ", field_, " of an unexpected kind");
  }
  template <typename... Parts>
  [[noreturn]] void fail_here(const Parts&... found) const {
    fail<CheckpointError>("cannot read ", file_, ": it is cut or no SentencePiece model: ", found..., " at byte ",
                          offset_ + position_, ". Fetch the file again.");
  }

  std::string_view bytes_;
  std::size_t offset_;
  const std::string& file_;
  std::size_t position_ = 0;
  uint64_t field_ = 0, number_ = 0;
  int wire_type_ = 0;
  std::string_view text_;
};

SentencePieceModel::Piece read_piece(Message message) {
  constexpr uint64_t kControl = 3, kUserDefined = 4;
  SentencePieceModel::Piece piece;
  while (message.next()) {
    if (message.field() == 1) piece.text = message.text();
    if (message.field() == 2) piece.score = message.real();
    if (message.field() == 3) piece.is_symbol = message.number() == kControl || message.number() == kUserDefined;
  }
  return piece;
}

void check_model_type(Message trainer_spec, const std::string& file) {
  constexpr uint64_t kUnigram = 1;
  while (trainer_spec.next()) {
    if (trainer_spec.field() != 3) continue;
    check<CheckpointError>(trainer_spec.number() == kUnigram, "cannot use ", file, ": it is a model of type ",
                           trainer_spec.number(), ". T5 needs a unigram model (type ", kUnigram, ").");
  }
}

std::string read_charsmap(Message normalizer_spec) {
  std::string charsmap;
  while (normalizer_spec.next()) {
    if (normalizer_spec.field() == 2) charsmap = normalizer_spec.text();
  }
  return charsmap;
}

void check_pieces(const SentencePieceModel& model, const std::string& file) {
  check<CheckpointError>(!model.pieces.empty(), "cannot use ", file, ": it has no pieces. Fetch the file again.");
  std::unordered_set<std::string_view> texts;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    const char* const fault = piece.text.empty()                 ? "is empty"
                              : !is_utf8(piece.text)             ? "is not UTF-8"
                              : !std::isfinite(piece.score)      ? "has no finite score"
                              : !texts.insert(piece.text).second ? "stands there twice"
                                                                 : nullptr;
    check<CheckpointError>(fault == nullptr, "cannot use ", file, ": piece ", id, ", ", quoted(piece.text), ", ",
                           fault == nullptr ? "" : fault, ". Fetch the file again.");
  }
}

}  // namespace

SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path) {
  const std::string bytes = read_whole_file(path, kLargestModel);
  const std::string file = path.string();
  SentencePieceModel model;
  Message message(bytes, 0, file);
  while (message.next()) {
    if (message.field() == 1) model.pieces.push_back(read_piece(message.message()));
    if (message.field() == 2) check_model_type(message.message(), file);
    if (message.field() == 3) model.charsmap = read_charsmap(message.message());
  }
  check_pieces(model, file);
  return model;
}

}  // namespace pardiff
