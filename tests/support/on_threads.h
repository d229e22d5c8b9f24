#pragma once
#include <pardiff/comm/world.h>

#include <functional>

namespace pardiff::testing {

/// Runs `work` on `ranks` ranks that are threads, each computing with one CPU thread; a lost partner is noticed in a
/// minute.
void on_threads(int ranks, const std::function<void(World&)>& work);

}  // namespace pardiff::testing
