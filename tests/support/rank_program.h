#pragma once
#include <pardiff/comm/world.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace pardiff::testing {

/// Work for ranks that are processes, by name.
using RankPrograms = std::map<std::string, std::function<void(World&)>>;

/// For a test program's main: runs as one rank if this process was started by `expect_ranks_succeed` or with a
/// `rank_command`, else runs the tests. Returns the exit code.
int run_tests_or_rank(int argc, char** argv, const RankPrograms& programs, const WorldOptions& options);

/// The command line of one such rank, with PARDIFF_NPROC_PER_NODE set of several.
std::vector<std::string> rank_command(const std::string& program, const std::string& comm);

/// Starts this test program as `ranks` processes that run `program` over the transport `comm`, and expects them all to
/// end well. The reason why not is what the ranks have printed.
void expect_ranks_succeed(int ranks, const std::string& program, const std::string& comm = "auto");

}  // namespace pardiff::testing
