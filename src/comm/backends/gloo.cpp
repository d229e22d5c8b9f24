// The only file that includes the engine's Gloo header: it needs gloo's own headers, whose version differs from the one
// compiled into the engine, so nothing here constructs or derives from a gloo class.
#include "comm/backends/gloo.h"

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/backends/c10d_group.h"

namespace pardiff::comm {
namespace {

// Between hosts the address that the host's own name stands for, unless the user names the interface, as torch does.
auto device_for(bool one_host) {
  if (one_host) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface && *interface) return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

std::shared_ptr<GroupBackend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              std::chrono::milliseconds timeout, bool one_host) {
  auto options = c10d::ProcessGroupGloo::Options::create_default(timeout);
  options->devices.clear();
  options->devices.push_back(device_for(one_host));
  options->threads = 2;
  return wrap_c10d("gloo", c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options));
}

}  // namespace pardiff::comm
