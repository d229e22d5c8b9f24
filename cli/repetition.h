#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pardiff::cli {

class Flags;
struct GenerateFlags;

/// What a picture's bytes depend on beside the flags.
struct PictureOrigin {
  std::map<std::string, std::string> checkpoint;  // part -> digest of its files
  std::map<std::string, std::string> made_with;   // "pardiff", "torch", "cpu" -> version, name

  /// Of the checkpoint in `folder`, with the weights of the file `transformer` if there is one, and of this program.
  /// Cost: reads a few rows of every tensor. Throws: CheckpointError for a file that is missing or damaged.
  static PictureOrigin here(const std::filesystem::path& folder, const std::string& variant,
                            const std::filesystem::path& transformer);
};

/// A picture that is made again from what it carries.
class Repetition {
 public:
  /// Gives `declared` what the picture at `flags.from` carries and nobody has given. One layout flag on the command
  /// line replaces the picture's whole layout; a prompt there makes another batch.
  /// Throws: CheckpointError if it cannot be read; UsageError if it carries nothing that pardiff wrote.
  Repetition(Flags& declared, GenerateFlags& flags);

  /// Compares what the picture was made from with what is here. Another checkpoint is refused, unless it was asked for
  /// by --model, --variant or --transformer; then, and for another program or processor, the answer says what differs.
  /// Throws: CheckpointError.
  std::vector<std::string> differences(const PictureOrigin& here) const;

  /// What became of it, as a line to print; empty where the command line asked for another picture.
  std::string outcome(const std::filesystem::path& written) const;

 private:
  std::filesystem::path from_;
  PictureOrigin origin_;
  bool names_model_ = false, is_changed_ = false;
  std::string before_;  // the file's bytes, which may be overwritten
};

}  // namespace pardiff::cli
