#include <pardiff/core/check.h>
#include <pardiff/io/atomic_file.h>
#include <pardiff/io/checkpoint.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "io/checkpoint_names.h"
#include "io/file_bytes.h"
#include "io/safetensors_writer.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;

using Shards = std::vector<std::vector<DeferredTensor>>;

// Filled in the order given, as huggingface_hub does, so that a folder saved by either has the same files.
Shards split_into_shards(const std::vector<DeferredTensor>& tensors, int64_t max_shard_bytes) {
  Shards shards(1);
  int64_t filled = 0;
  for (const auto& entry : tensors) {
    const int64_t bytes = entry.bytes();
    if (bytes > max_shard_bytes) {
      shards.insert(shards.end() - 1, std::vector<DeferredTensor>{entry});
      continue;
    }
    if (filled + bytes > max_shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(entry);
    filled += bytes;
  }
  if (shards.back().empty() && shards.size() > 1) shards.pop_back();
  return shards;
}

std::string index_text(const Shards& shards, const CheckpointNames& names) {
  int64_t total = 0;
  auto weights = nlohmann::json::object();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const auto& tensor : shards[i]) {
      total += tensor.bytes();
      weights[tensor.name] = names.shard(i + 1, shards.size());
    }
  }
  return nlohmann::json{{"metadata", {{"total_size", total}}}, {"weight_map", weights}}.dump(2) + "\n";
}

void check_unique_across(const Shards& shards, const fs::path& folder) {
  std::set<std::string> seen;
  for (const auto& shard : shards) {
    for (const auto& entry : shard) {
      check<UsageError>(seen.insert(entry.name).second, "cannot write ", folder.string(), ": tensor ",
                        in_quotes(entry.name), " is given twice.");
    }
  }
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  check<CheckpointError>(!error, "cannot remove ", path.string(), " of an older save: ", error.message(), ".");
}

// The last file put in place is the one that a loader looks for first, so a save that is killed between two renames
// leaves the old checkpoint, the new one, or shards without an index, which no loader takes; never a mixture.
void put_in_place(const fs::path& folder, const CheckpointNames& names, std::vector<AtomicFile>& files,
                  const std::set<std::string>& written) {
  const auto old_shards = names.shards_in(folder);
  const bool is_sharded = written.contains(names.index());
  const bool replaces_shards =
      std::ranges::any_of(old_shards, [&](const auto& name) { return written.contains(name); });
  if (is_sharded && replaces_shards) {
    remove_file(folder / names.index());
    remove_file(folder / names.single());
  }
  for (auto& file : files) file.commit();
  if (!is_sharded) remove_file(folder / names.index());
  if (is_sharded) remove_file(folder / names.single());
  for (const auto& name : old_shards) {
    if (!written.contains(name)) remove_file(folder / name);
  }
}

}  // namespace

void save_checkpoint(const fs::path& folder, const std::string& stem, const std::vector<NamedTensor>& tensors,
                     int64_t max_shard_bytes, const std::string& variant) {
  save_checkpoint(folder, stem, deferred(tensors, folder), max_shard_bytes, variant);
}

void save_checkpoint(const fs::path& folder, const std::string& stem, const std::vector<DeferredTensor>& tensors,
                     int64_t max_shard_bytes, const std::string& variant) {
  check<UsageError>(max_shard_bytes > 0, "cannot save shards of at most ", max_shard_bytes,
                    " bytes. Give a positive size.");
  const CheckpointNames names(stem, variant);
  const Shards shards = split_into_shards(tensors, max_shard_bytes);
  check_unique_across(shards, folder);
  const bool is_sharded = shards.size() > 1;
  std::set<std::string> written;
  std::vector<SafetensorsWriter> writers;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto name = is_sharded ? names.shard(i + 1, shards.size()) : names.single();
    writers.emplace_back(folder / name, shards[i], std::map<std::string, std::string>{{"format", "pt"}});
    written.insert(name);
  }

  std::error_code error;
  fs::create_directories(folder, error);
  check<CheckpointError>(!error, "cannot create the folder ", folder.string(), ": ", error.message(), ".");
  std::vector<AtomicFile> files;
  for (const auto& writer : writers) files.push_back(writer.write());
  if (is_sharded) {
    const auto text = index_text(shards, names);
    files.emplace_back(folder / names.index()).write(text.data(), text.size());
    written.insert(names.index());
  }
  put_in_place(folder, names, files, written);
}

}  // namespace pardiff
