// Ranks that serve random requests for as long as a soak lasts; scripts/soak.py starts them and disturbs other ranks
// meanwhile.   soak_ranks MODEL FULL_DISK REQUESTS SEED
// FULL_DISK is a folder without room. One line of JSON for each request comes from rank 0.
#include <pardiff/pardiff.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "support/golden.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;

// In float64, where every layout gives one rank's picture; float32 denoising amplifies rounding.
constexpr double kTolerance = 1e-7;
constexpr int kFaultsInPerCent = 5;  // the other half of one in ten is scripts/soak.py's

struct Arguments {
  std::string model;
  fs::path full_disk;
  int requests = 0;
  uint64_t seed = 0;
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  int64_t upto(int64_t most) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(most)); }

 private:
  std::mt19937_64 engine_;
};

FluxPipelineInputs random_inputs(Draw& draw) {
  const char* const words[] = {"a", "red", "circle", "on", "blue", "background", "large", "star"};
  FluxPipelineInputs inputs;
  std::string prompt;
  for (int64_t count = draw.upto(31); count > 0; --count) {
    prompt.append(words[draw.upto(std::ssize(words))]);
    prompt.push_back(' ');
  }
  inputs.prompt = prompt;
  inputs.height = 16 * (1 + draw.upto(10));
  inputs.width = 16 * (1 + draw.upto(10));
  inputs.num_inference_steps = 1 + draw.upto(2);
  inputs.max_sequence_length = 1 + draw.upto(64);
  inputs.seed = draw.upto(1000000);
  return inputs;
}

// Every mode and layout of four ranks that takes any size.
ContextParallelConfig random_layout(Draw& draw) {
  const ContextParallelConfig layouts[] = {
      {.ulysses_degree = 4, .ulysses_anything = true},
      {.ring_degree = 4, .ring_anything = true},
      {.ring_degree = 4, .rotate_method = "allgather", .ring_anything = true},
      {.ring_degree = 2, .ulysses_degree = 2, .ulysses_anything = true, .ring_anything = true}};
  return layouts[draw.upto(std::ssize(layouts))];
}

// One of many ways to ask for what cannot be.
void spoil(FluxPipelineInputs& inputs, Draw& draw) {
  switch (draw.upto(6)) {
    case 0:
      inputs.height = -16;
      break;
    case 1:
      inputs.num_inference_steps = 0;
      break;
    case 2:
      inputs.max_sequence_length = 513;
      break;
    case 3:
      inputs.prompt = std::string("\xff\xfe");
      break;
    case 4:
      inputs.num_images_per_prompt = 0;
      break;
    default:
      inputs.width = 1 << 30;
      break;
  }
}

template <typename Expected>
bool refuses(const std::function<void()>& work) {
  try {
    work();
  } catch (const Expected&) {
    return true;
  }
  return false;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t descriptors() { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()); }

FluxPipeline load(const Arguments& arguments, World& world) {
  return FluxPipeline::from_pretrained(arguments.model, world, {.dtype = at::kDouble, .keep_loaded = true});
}

class Soak {
 public:
  Soak(const Arguments& arguments, World& world)
      : arguments_(arguments),
        world_(world),
        shared_(load(arguments, world)),
        whole_(load(arguments, alone_)),
        draw_(arguments.seed) {}

  void run() {
    for (int i = 0; i < arguments_.requests; ++i) request(i);
  }

 private:
  void request(int number) {
    auto inputs = random_inputs(draw_);
    const auto layout = random_layout(draw_);
    const auto fault = draw_.upto(100) < kFaultsInPerCent ? 1 + draw_.upto(2) : 0;
    shared_.transformer()->enable_parallelism(layout, world_);
    nlohmann::json line = {{"request", number}};
    if (fault == 1) {
      spoil(inputs, draw_);
      line["fault"] = "bad request";
      line["ok"] = refuses<Error>([&] { shared_.generate(inputs); });
    } else {
      line["ok"] = serve(inputs, fault == 2, line);
    }
    shared_.transformer()->disable_parallelism();
    line["resident"] = resident_bytes();
    line["descriptors"] = descriptors();
    if (world_.rank() == 0) std::cout << line.dump() << std::endl;
  }

  // Rank 0 makes the picture alone too. With a full disk the request fails there, and the picture stays absent.
  bool serve(const FluxPipelineInputs& inputs, bool disk_is_full, nlohmann::json& line) {
    const auto output = shared_.generate(inputs);
    if (world_.rank() != 0) return true;
    const double error = testing::absolute_error(output.image, whole_.generate(inputs).image);
    line["error"] = error;
    if (!disk_is_full) return error <= kTolerance;
    line["fault"] = "full disk";
    const auto path = arguments_.full_disk / "picture.png";
    const bool refused = refuses<CheckpointError>([&] { output.images.front().save(path); });
    return refused && fs::is_empty(arguments_.full_disk) && error <= kTolerance;
  }

  const Arguments& arguments_;
  World& world_;
  World alone_{{.device = "cpu", .threads = 1}};
  FluxPipeline shared_, whole_;
  Draw draw_;
};

}  // namespace
}  // namespace pardiff

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: soak_ranks MODEL FULL_DISK REQUESTS SEED\n";
    return 2;
  }
  const pardiff::Arguments arguments{argv[1], argv[2], std::atoi(argv[3]), std::strtoull(argv[4], nullptr, 10)};
  return pardiff::run([&](pardiff::World& world) { pardiff::Soak(arguments, world).run(); },
                      {.device = "cpu", .threads = 1, .timeout_s = 120});
}
