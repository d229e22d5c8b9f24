#pragma once
#include <pardiff/io/checkpoint.h>

#include <filesystem>
#include <string>

namespace pardiff {

/// A SHA-256, in hex, that tells one checkpoint from another however its tensors are dealt to files: of all names,
/// dtypes and shapes and, of each tensor, its first, middle and last row (along dimension 0; of vectors 64 values).
/// A change of other rows alone goes unseen; training, merging and conversion change all of them.
/// Cost: reads those rows. Throws: CheckpointError for a file that is damaged.
std::string digest_of(const Checkpoint& checkpoint);

/// The same of a file: of all its bytes. Throws: CheckpointError if it cannot be read.
std::string digest_of_file(const std::filesystem::path& file);

/// SHA-256 of a text, in hex.
std::string digest_of_text(const std::string& text);

}  // namespace pardiff
