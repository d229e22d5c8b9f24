#include "support/on_threads.h"

#include <ATen/Parallel.h>

#include "support/test_device.h"

namespace pardiff::testing {

void on_threads(int ranks, const std::function<void(World&)>& work) {
  run_as_threads(ranks,
                 [&](World& world) {
                   at::set_num_threads(1);
                   work(world);
                 },
                 {.device = test_device(), .timeout_s = 60});
}

}  // namespace pardiff::testing
