#pragma once
#include <filesystem>
#include <string>

namespace pardiff {

/// The folder of a model. An existing folder is taken as it is; otherwise `owner/name` is looked up in the local
/// Hugging Face cache (HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub,
/// ~/.cache/huggingface/hub), never on the network. `revision` is a branch, a tag or a commit.
/// Throws: CheckpointError saying where it looked.
std::filesystem::path resolve_model(const std::string& folder_or_repo_id, const std::string& revision = "main");

}  // namespace pardiff
