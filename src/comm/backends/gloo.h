#pragma once
#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/backends/backend.h"

namespace pardiff::comm {

/// Gloo over TCP sockets; `one_host` binds it to loopback.
std::shared_ptr<GroupBackend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              std::chrono::milliseconds timeout, bool one_host);

}  // namespace pardiff::comm
