#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/backends/backend.h"

namespace pardiff::comm {

/// Moves the bytes of all shared-memory groups of one process, so that a rank that waits in one group still serves
/// the others.
class ShmEngine;

/// `check_alive`: throws when waiting has become pointless; called now and then while a wait makes no progress.
/// `may_spin`: every rank of this host has a core of its own, so a short wait need not give it up.
std::shared_ptr<ShmEngine> make_shm_engine(std::function<void()> check_alive, bool may_spin);

/// Gives one text, returns every rank's in rank order; see make_shm_group.
using ExchangeTexts = std::function<std::vector<std::string>(const std::string&)>;

/// A group of processes of one host that exchange through shared memory. Sums are added in rank order. Collective:
/// meets through `exchange`. Returns null, and why in `reason`, on all ranks alike if some cannot share memory.
std::shared_ptr<GroupBackend> make_shm_group(std::shared_ptr<ShmEngine> engine, const ExchangeTexts& exchange, int rank,
                                             int size, std::string& reason);

}  // namespace pardiff::comm
