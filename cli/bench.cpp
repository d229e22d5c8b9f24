#include <pardiff/core/check.h>
#include <pardiff/io/atomic_file.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>

#include "cli/bench_result.h"
#include "cli/bench_runs.h"
#include "cli/dtype.h"
#include "cli/flags.h"
#include "cli/ranks.h"
#include "cli/subcommand.h"

namespace pardiff::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostSize = int64_t{1} << 30;

struct BenchFlags {
  std::string what;
  std::vector<std::string> files;
  std::string sizes;
  int64_t nproc_per_node = 1, heads = 12, head_dim = 64, max_sequence_length = 128, repeats = 9;
  std::string model = "bench", dtype = "float32", device = "auto", comm = "auto";
  int64_t threads = 0;  // 0: not given
  fs::path json, plot;

  void declare(Flags& flags) {
    flags
        .group("What to measure",
               "pardiff bench attention --nproc-per-node 2 --sizes 64,128 --repeats 3 --device cpu --json before.json")
        .argument("WHAT", what, {"attention", "collectives", "denoise", "compare"},
                  "attention, collectives, denoise, or compare with two files")
        .arguments("FILE", files, "For compare: two results that --json wrote, the older first")
        .text("--sizes", sizes,
              "What to sweep, with commas between: tokens (attention; default 512,1024,2048), bytes (collectives; "
              "default 4096,65536,1048576) or pixels of a side (denoise; default 256,512)")
        .integer("--heads", heads, {1, 1024}, "Of attention; default 12")
        .integer("--head-dim", head_dim, {1, 1024}, "Of attention; default 64")
        .text("--model", model, "For denoise: a preset, a folder or a JSON file, as for init; default bench")
        .integer("--max-sequence-length", max_sequence_length, {1, 512}, "For denoise: text tokens; default 128")
        .integer("--repeats", repeats, {1, 1000}, "Rounds through all cases; default 9")
        .path("--json", json, "Write every round's times as JSON")
        .path("--plot", plot, "Write the medians as a picture, a .svg");
    flags
        .group("Ranks", "pardiff bench collectives --nproc-per-node 2 --comm shm --sizes 4096 --repeats 3 --device cpu")
        .integer("--nproc-per-node", nproc_per_node, {1, 128}, "Ranks to start on this machine; default 1")
        .integer("--threads", threads, {1, 1024}, "CPU threads of each rank; default as for generate")
        .choice("--device", device, {"cpu", "cuda"}, "Default: cuda when there is one")
        .choice("--comm", comm, {"auto", "shm", "gloo", "nccl"}, "Transport between ranks; default auto")
        .choice("--dtype", dtype, {"float32", "bfloat16", "float16"}, "Default float32");
  }

  void validate() const {
    check<UsageError>((what == "compare") == (files.size() == 2) && (what == "compare" || files.empty()),
                      what == "compare" ? "compare takes two files" : "only compare takes files", ", and ",
                      files.size(), " are given. See pardiff bench --help.");
    check<UsageError>(json.empty() || json.extension() == ".json", "--json is '", json.string(),
                      "'. Give a name that ends in .json.");
    check<UsageError>(plot.empty() || plot.extension() == ".svg", "--plot is '", plot.string(),
                      "'. Give a name that ends in .svg.");
    for (const auto& path : {json, plot}) {
      if (!path.empty()) AtomicFile::check_writable(path);
    }
    options();
  }

  BenchOptions options() const {
    BenchOptions options{.sizes = {},
                         .heads = heads,
                         .head_dim = head_dim,
                         .text_tokens = max_sequence_length,
                         .model = model,
                         .dtype = dtype_named(dtype),
                         .repeats = repeats};
    std::istringstream list(!sizes.empty()          ? sizes
                            : what == "attention"   ? "512,1024,2048"
                            : what == "collectives" ? "4096,65536,1048576"
                                                    : "256,512");
    for (std::string size; std::getline(list, size, ',');) {
      options.sizes.push_back(parse_integer("--sizes", size, {1, kMostSize}));
    }
    return options;
  }
};

void write(const BenchFlags& flags, const BenchResult& result) {
  std::cout << result.to_table();
  if (!flags.json.empty()) write_text_file(flags.json, result.to_json());
  if (!flags.plot.empty()) write_text_file(flags.plot, result.to_svg());
}

BenchResult measure(const BenchFlags& flags, World& world) {
  if (flags.what == "attention") return bench_attention(flags.options(), world);
  if (flags.what == "collectives") return bench_collectives(flags.options(), world);
  return bench_denoise(flags.options(), world);
}

int bench(const BenchFlags& flags) {
  flags.validate();
  if (flags.what == "compare") {
    std::cout << comparison(BenchResult::from_file(flags.files[0]), BenchResult::from_file(flags.files[1]));
    return 0;
  }
  const auto env = LaunchEnv::from_environment();
  if (!env && flags.nproc_per_node > 1) {
    return launch_ranks(static_cast<int>(flags.nproc_per_node), own_command_line());
  }
  unsetenv("PARDIFF_NPROC_PER_NODE");
  const WorldOptions options{.device = flags.device, .comm = flags.comm, .threads = static_cast<int>(flags.threads)};
  return run(
      [&](World& world) {
        const auto result = measure(flags, world);
        if (world.rank() == 0) write(flags, result);
      },
      options);
}

}  // namespace

Action declare_bench(Flags& declared) {
  auto flags = std::make_shared<BenchFlags>();
  flags->declare(declared);
  return [flags] { return bench(*flags); };
}

}  // namespace pardiff::cli
