#pragma once
#include <memory>

#include "comm/backends/backend.h"

namespace pardiff::comm {

/// A transport of host memory (Gloo) that serves tensors of a device: what is sent is copied to host memory when the
/// operation starts, what is received is copied back by `wait`. Two copies more than a transport of the device has, and
/// the only way for ranks that share one GPU, which NCCL refuses.
std::shared_ptr<GroupBackend> stage_through_host(std::shared_ptr<GroupBackend> host);

}  // namespace pardiff::comm
