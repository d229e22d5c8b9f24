#pragma once
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/backends/backend.h"

namespace pardiff::comm {

/// Any engine process group (Gloo, NCCL) as a backend of ours.
std::shared_ptr<GroupBackend> wrap_c10d(std::string transport, c10::intrusive_ptr<c10d::Backend> backend);

}  // namespace pardiff::comm
