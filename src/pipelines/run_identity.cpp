#include "pipelines/run_identity.h"

#include <pardiff/core/check.h>

#include <algorithm>

#include "pipelines/sha256.h"

namespace pardiff {

std::string identity_of(const Checkpoint& checkpoint) {
  std::string all;
  std::size_t tensors = 0;
  const auto files = checkpoint.files();
  for (const auto& path : files) all += text_of(path.filename().string(), "\n");
  for (const auto& name : checkpoint.names()) {
    const auto& info = checkpoint.info(name);
    all += text_of(name, " ", checkpoint.file_of(name).filename().string(), " ", info.dtype, " [", joined(info.shape),
                   "] ", info.begin, " ", info.end, "\n");
    ++tensors;
  }
  return text_of(files.size(), files.size() == 1 ? " file with " : " files with ", tensors, " tensors of ",
                 checkpoint.total_bytes(), " bytes, headers ", sha256(all).substr(0, 16));
}

std::string library_version() { return PARDIFF_VERSION; }

void agree_on(const RunIdentity& identity, World& world) {
  std::string all;
  for (const auto& [field, value] : identity) all += text_of(field, "\n", value, "\n");
  const auto digests = world.texts_of_all(sha256(all));
  if (std::all_of(digests.begin(), digests.end(), [&](const auto& digest) { return digest == digests[0]; })) return;
  for (const auto& [field, value] : identity) world.agree(field, value);
}

}  // namespace pardiff
