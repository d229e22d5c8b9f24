#include "models/shared_weights.h"

#include <ATen/ATen.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/models/model.h>

#include <utility>

namespace pardiff {
namespace {

constexpr size_t kBytesAtOnce = size_t{64} << 20;  // what a rank copies before others may have it

}  // namespace

std::map<std::string, SharedWeights::Block> SharedWeights::blocks_of(const Model& model, const Checkpoint& checkpoint,
                                                                     const LoadOptions& options) {
  std::map<std::string, Block> blocks;
  for (const auto& parameter : model.named_parameters()) {
    const auto& name = parameter.key();
    if (!checkpoint.contains(name)) continue;  // under another spelling
    const auto stored = checkpoint.info(name).dtype;
    const auto dtype = options.loaded_dtype(name, stored);
    const auto slice = options.slice_of(name);
    if (!slice && dtype == stored) continue;  // it lies in the file's own mapping
    const auto shape = checkpoint.shape(name, slice);
    const auto bytes = static_cast<size_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype);
    if (bytes > 0) blocks.emplace(name, Block{parameter.value(), blocks.size(), bytes, shape, dtype});
  }
  return blocks;
}

std::shared_ptr<SharedWeights> SharedWeights::of(const Model& model, const Checkpoint& checkpoint,
                                                 const LoadOptions& options) {
  auto* world = model.world();
  if (!world || !world->device().is_cpu() || model.weight_shards()) return nullptr;
  const auto& mesh = *model.mesh();
  if (mesh.size() == mesh.size("tp")) return nullptr;  // no other rank has these slices
  auto blocks = blocks_of(model, checkpoint, options);
  if (blocks.empty()) return nullptr;
  std::vector<size_t> bytes(blocks.size());
  auto key = text_of(model.class_name(), "/", mesh.index("tp"), "/", mesh.size("tp"), "/", checkpoint.files_identity());
  for (const auto& [name, block] : blocks) {
    bytes[block.index] = block.bytes;
    key += text_of(static_cast<int>(block.dtype), ":", block.bytes, ",");
  }
  auto memory = world->host_memory(text_of(std::hash<std::string>()(key)), bytes);
  if (!memory) return nullptr;
  return std::shared_ptr<SharedWeights>(new SharedWeights(std::move(blocks), std::move(memory)));
}

void SharedWeights::read(const Names& names, const std::function<void(const Names&)>& read_own) {
  using comm::HostMemory;
  std::vector<std::string> left(names.begin(), names.end());
  while (!left.empty()) {
    Names mine;
    std::vector<std::string> taken, later;
    size_t bytes = 0;
    for (const auto& name : left) {
      auto& block = blocks_.at(name);
      if (bytes >= kBytesAtOnce) {
        later.push_back(name);
        continue;
      }
      auto claimed = memory_->claim(block.index);
      if (claimed.claim == HostMemory::Claim::kReady) take(block, std::move(claimed.block));
      if (claimed.claim == HostMemory::Claim::kTaken) taken.push_back(name);
      if (claimed.claim != HostMemory::Claim::kMine) continue;
      mine.insert(name);
      bytes += block.bytes;
    }
    if (!mine.empty()) {
      fill(mine, read_own);
    } else if (!taken.empty()) {
      memory_->wait(blocks_.at(taken.front()).index);
    }
    left = std::move(later);
    left.insert(left.end(), taken.begin(), taken.end());
  }
}

void SharedWeights::take(Block& block, std::shared_ptr<comm::HostMemory::Block> memory) {
  void* bytes = memory->bytes();
  block.parameter.set_data(at::from_blob(
      bytes, block.shape, [memory = std::move(memory)](void*) {}, at::TensorOptions(block.dtype)));
}

void SharedWeights::fill(const Names& names, const std::function<void(const Names&)>& read_own) {
  Names left = names;
  try {
    read_own(names);
    for (const auto& name : names) {
      auto& block = blocks_.at(name);
      auto memory = memory_->fill(block.index, block.parameter.contiguous().const_data_ptr());
      left.erase(name);
      take(block, std::move(memory));
    }
  } catch (...) {
    for (const auto& name : left) memory_->abandon(blocks_.at(name).index);
    throw;
  }
}

}  // namespace pardiff
