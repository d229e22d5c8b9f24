// Part of libpardiff_cuda, which needs CUDA's headers and is opened only when a GPU is asked for.
#include <c10/cuda/CUDAGuard.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/backends/c10d_group.h"
#include "comm/backends/nccl.h"

extern "C" void pardiff_make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                        int device_index, std::chrono::milliseconds timeout,
                                        std::shared_ptr<pardiff::comm::GroupBackend>& made) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_index));
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = timeout;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  group->setBoundDeviceId(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device_index)));
  made = pardiff::comm::wrap_c10d("nccl", group);
}
