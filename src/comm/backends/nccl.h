#pragma once
#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/backends/backend.h"

namespace pardiff::comm {

/// NCCL on CUDA device `device_index`; it lives in the CUDA part, which is opened on first use.
/// Throws: ConfigError where that part is missing.
std::shared_ptr<GroupBackend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              int device_index, std::chrono::milliseconds timeout);

/// The function of the CUDA part that does it.
using MakeNcclGroup = void (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int device_index,
                               std::chrono::milliseconds timeout, std::shared_ptr<GroupBackend>& made);
inline constexpr const char* kMakeNcclGroup = "pardiff_make_nccl_group";

}  // namespace pardiff::comm
