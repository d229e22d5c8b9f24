#include <ATen/Context.h>
#include <dlfcn.h>
#include <pardiff/core/device.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>

namespace pardiff {
namespace {

struct CudaPart {
  void* handle = nullptr;
  std::string why_not;
};

// Beside libpardiff itself, wherever that was installed.
std::filesystem::path cuda_part_path() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&why_no_cuda), &info) == 0 || !info.dli_fname) return "libpardiff_cuda.so";
  return std::filesystem::path(info.dli_fname).parent_path() / "libpardiff_cuda.so";
}

CudaPart open_cuda_part() {
  CudaPart part;
  const auto path = cuda_part_path();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    part.why_not = "built without CUDA: the torch wheel had no CUDA part, or NCCL's headers were missing";
    return part;
  }
  part.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!part.handle) {
    part.why_not = std::string("the CUDA part cannot be opened: ") + dlerror();
  } else if (!at::hasCUDA()) {
    part.why_not = "the driver reports no CUDA device";
  }
  return part;
}

const CudaPart& cuda_part() {
  static const CudaPart part = open_cuda_part();
  return part;
}

}  // namespace

std::string why_no_cuda() { return cuda_part().why_not; }

void* cuda_function(const char* name) { return cuda_part().handle ? dlsym(cuda_part().handle, name) : nullptr; }

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace pardiff
