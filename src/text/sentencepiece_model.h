#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pardiff {

/// What a spiece.model (SentencePiece's ModelProto) says about a unigram tokenizer.
struct SentencePieceModel {
  struct Piece {
    std::string text;
    float score = 0;
    /// A control or user-defined symbol: one token wherever its text stands.
    bool is_symbol = false;
  };
  std::vector<Piece> pieces;
  /// Replacements of characters (see PrecompiledCharsmap); empty if there are none.
  std::string charsmap;
};

/// Throws: CheckpointError naming the file, and where in it, if it is missing, cut, or no unigram model.
/// Source: sentencepiece_model.proto of SentencePiece and the wire format of Protocol Buffers.
SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path);

}  // namespace pardiff
