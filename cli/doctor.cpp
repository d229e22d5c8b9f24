#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <pardiff/attention/backend.h>
#include <pardiff/comm/launch_env.h>
#include <pardiff/core/check.h>
#include <pardiff/core/device.h>
#include <torch/version.h>

#include <iomanip>
#include <iostream>
#include <thread>

#include "cli/dtype.h"
#include "cli/flags.h"
#include "cli/machine.h"
#include "cli/subcommand.h"
#include "cli/tokenizers.h"

namespace pardiff::cli {
namespace {

void line(const std::string& name, const std::string& value) {
  std::cout << "  " << std::left << std::setw(22) << name << value << "\n";
}

void heading(const char* text) { std::cout << text << "\n"; }

std::string libtorch_path() {
  Dl_info info = {};
  const auto address = reinterpret_cast<const void*>(&at::get_num_threads);
  return dladdr(address, &info) && info.dli_fname ? info.dli_fname : "unknown";
}

std::string yes_or(const std::string& why_not) { return why_not.empty() ? "yes" : "no: " + why_not; }

void print_backends(const std::string& why_no_cuda_here) {
  heading("attention backends (--attention-backend)");
  for (const auto* backend : attention_backends()) {
    const auto on_cpu = backend->why_not({.device = at::kCPU});
    const auto in_ring = backend->why_not({.device = at::kCPU, .lse = true});
    const auto on_cuda = why_no_cuda_here.empty() ? backend->why_not({.device = at::kCUDA}) : std::string("no device");
    line(backend->name(), backend->description());
    line("", text_of("cpu: ", yes_or(on_cpu), "; ring on cpu: ", yes_or(in_ring), "; cuda: ", yes_or(on_cuda)));
  }
}

int doctor() {
  const auto no_cuda = why_no_cuda();
  heading("versions");
  line("pardiff", version_line().substr(version_line().find(' ') + 1));
  line("libtorch", text_of(TORCH_VERSION, " at ", libtorch_path()));
  line("compiler", __VERSION__);
  heading("devices (--device)");
  line("cpu", text_of(processor_name(), ", ", allowed_cores(), " of ", std::thread::hardware_concurrency(),
                      " cores allowed, memory ", value_in("/proc/meminfo", "MemTotal")));
  line("", text_of("--dtype auto on the cpu: ", cpu_has_amx_bfloat16() ? "bfloat16 (AMX)" : "float32 (no AMX)"));
  line("cuda", yes_or(no_cuda));
  print_backends(no_cuda);
  heading("transports (--comm)");
  line("shm", "yes: shared memory among ranks of one host, for tensors on the cpu");
  line("gloo", "yes: TCP sockets; for tensors on a GPU through host memory");
  line("nccl", yes_or(no_cuda));
  heading("launch");
  const auto env = LaunchEnv::from_environment();
  line("started by",
       env ? text_of(env->launcher, ": rank ", env->rank, " of ", env->world_size) : "nobody: it starts its own ranks");
  line("tokenizers for init", own_tokenizers().empty() ? "not found: give --tokenizers" : own_tokenizers().string());
  return 0;
}

}  // namespace

Action declare_doctor(Flags& flags) {
  flags.group("Flags", "pardiff doctor");
  return [] { return doctor(); };
}

}  // namespace pardiff::cli
