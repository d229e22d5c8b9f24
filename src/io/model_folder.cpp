#include <pardiff/core/check.h>
#include <pardiff/io/model_folder.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "io/file_bytes.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path with_home(const std::string& path) {
  if (path == "~") return environment("HOME");
  if (path.starts_with("~/")) return fs::path(environment("HOME")) / path.substr(2);
  return path;
}

struct Cache {
  fs::path folder;
  std::string chosen_by;
};

Cache hugging_face_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto value = environment(name); !value.empty()) return {with_home(value), name};
  }
  if (const auto home = environment("HF_HOME"); !home.empty()) return {with_home(home) / "hub", "HF_HOME"};
  if (const auto home = environment("XDG_CACHE_HOME"); !home.empty()) {
    return {with_home(home) / "huggingface" / "hub", "XDG_CACHE_HOME"};
  }
  return {with_home("~/.cache/huggingface/hub"), "the default place"};
}

bool is_plain_name(std::string_view name) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; };
  return !name.empty() && name != "." && name != ".." && std::all_of(name.begin(), name.end(), allowed);
}

bool is_repository_id(const std::string& text) {
  const auto slash = text.find('/');
  return slash != std::string::npos && is_plain_name(text.substr(0, slash)) && is_plain_name(text.substr(slash + 1));
}

// A branch may hold slashes (refs/pr/1), but must not lead out of the cache.
bool is_revision(const std::string& text) {
  const fs::path path(text);
  return !path.empty() && !path.is_absolute() &&
         std::all_of(path.begin(), path.end(), [](const fs::path& part) { return is_plain_name(part.string()); });
}

std::string commit_of(const fs::path& repository, const std::string& revision) {
  const fs::path reference = repository / "refs" / revision;
  std::error_code ignored;
  if (!fs::is_regular_file(reference, ignored)) return revision;
  std::string commit = read_whole_file(reference, 4096);
  commit.erase(commit.find_last_not_of(" \n\r\t") + 1);
  check<CheckpointError>(is_plain_name(commit), "cannot use ", reference.string(), ": it holds ", in_quotes(commit),
                         ", expected the name of a commit. Remove the file and fetch the model again.");
  return commit;
}

}  // namespace

fs::path resolve_model(const std::string& folder_or_repo_id, const std::string& revision) {
  std::error_code ignored;
  const fs::path folder = with_home(folder_or_repo_id);
  if (fs::is_directory(folder, ignored)) return folder;
  const std::string name = in_quotes(folder_or_repo_id);
  check<CheckpointError>(!fs::exists(folder, ignored), "cannot open the model ", name,
                         ": it is a file. Give the folder that holds model_index.json, or an id like owner/name.");
  check<CheckpointError>(
      is_repository_id(folder_or_repo_id), "cannot open the model ", name,
      ": there is no such folder, and it is not a repository id like owner/name. Give one of the two.");
  check<CheckpointError>(is_revision(revision), "cannot open the model ", name, ": ", in_quotes(revision),
                         " is not a revision. Give a branch, a tag or a commit.");

  const Cache cache = hugging_face_cache();
  std::string cached_name = "models--" + folder_or_repo_id;
  cached_name.replace(cached_name.find('/'), 1, "--");
  const fs::path repository = cache.folder / cached_name;
  const fs::path snapshot = repository / "snapshots" / commit_of(repository, revision);
  if (fs::is_directory(snapshot, ignored)) return snapshot;
  const char* const what =
      fs::is_directory(repository, ignored) ? "its revision " : "no such folder exists, and revision ";
  fail<CheckpointError>("cannot open the model ", name, ": ", what, in_quotes(revision),
                        " is not in the local Hugging Face cache (looked for ", snapshot.string(), "; cache chosen by ",
                        cache.chosen_by, "). Fetch it first: huggingface-cli download ", folder_or_repo_id,
                        revision == "main" ? "" : " --revision " + revision, ".");
}

}  // namespace pardiff
