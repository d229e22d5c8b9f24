#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "comm/backends/backend.h"

namespace pardiff::comm {

/// What ranks that are threads of one process meet at.
class ThreadHub;

std::shared_ptr<ThreadHub> make_thread_hub();
/// Makes every wait of every rank fail from now on: one of them has thrown.
void fail_thread_hub(ThreadHub& hub, const std::string& why);
/// A group of some ranks of a hub; `name` and `ranks` tell it from others.
std::shared_ptr<GroupBackend> make_thread_group(std::shared_ptr<ThreadHub> hub, const std::string& name, int rank,
                                                int size, std::chrono::milliseconds timeout);

}  // namespace pardiff::comm
