#include "comm/backends/nccl.h"

#include <pardiff/core/check.h>
#include <pardiff/core/device.h>

namespace pardiff::comm {

std::shared_ptr<GroupBackend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              int device_index, std::chrono::milliseconds timeout) {
  const auto make = reinterpret_cast<MakeNcclGroup>(cuda_function(kMakeNcclGroup));
  check<ConfigError>(make != nullptr, "NCCL is not available: ", why_no_cuda(), ". Use --device cpu.");
  std::shared_ptr<GroupBackend> made;
  make(store, rank, size, device_index, timeout, made);
  return made;
}

}  // namespace pardiff::comm
