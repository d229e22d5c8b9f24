#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/io/checkpoint.h>

#include <string>
#include <utility>
#include <vector>

#include "pipelines/part_loading.h"
#include "pipelines/sha256.h"

namespace pardiff {

/// What must be equal on all ranks: the name of it for messages, and a short text that differs when it does.
using RunIdentity = std::vector<std::pair<std::string, std::string>>;

/// Names, sizes and headers of a checkpoint's files: how many, their bytes, and a digest of the rest. Its weights are
/// not read.
std::string identity_of(const Checkpoint& checkpoint);

/// Adds a part's config and checkpoint under its name ("the VAE").
template <typename Holder>
void add_identity(RunIdentity& identity, const std::string& name, const OpenedPart<Holder>& part) {
  identity.emplace_back(name + "'s config", sha256(part.model->config().to_json()).substr(0, 16));
  identity.emplace_back(name + "'s files", part.checkpoint ? identity_of(*part.checkpoint) : "the caller's model");
}

/// The version of this library.
std::string library_version();

/// Compares a digest of all fields among all ranks, and where it differs one field after another. Collective.
/// Throws: CommError on every rank; it names the field, and the ranks that differ from rank 0.
void agree_on(const RunIdentity& identity, World& world);

}  // namespace pardiff
