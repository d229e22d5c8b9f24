#include "cli/generate_flags.h"

#include <pardiff/attention/backend.h>
#include <pardiff/core/check.h>
#include <pardiff/io/atomic_file.h>
#include <pardiff/io/image.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>

#include "cli/flags.h"

namespace pardiff::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostPixelsPerSide = 16384;  // 2^28 pixels in all, as much as a PNG may have here
constexpr int64_t kMostSteps = 10'000;
constexpr int64_t kMostImages = 1024;
constexpr int64_t kMostThreads = 1024;
constexpr int64_t kMostSeconds = 7 * 24 * 3600;

// One prompt a line; lines without text are passed over, and so is the byte order mark that some editors write.
std::vector<std::string> prompts_in(const fs::path& path, int readers) {
  std::error_code ignored;
  // A pipe tells its prompts once: to the process that starts the ranks, or to one of them.
  check<UsageError>(readers == 1 || !fs::is_other(path, ignored), "the prompt file ", path.string(),
                    " is a pipe or a device, and ", readers,
                    " ranks read it. Write the prompts to an ordinary file, or give them with --prompt.");
  std::ifstream file(path);
  check<CheckpointError>(file.is_open() && !fs::is_directory(path, ignored), "cannot read the prompt file ",
                         path.string(), ": ", std::strerror(errno ? errno : EISDIR),
                         ". Give a text file with one prompt on each line.");
  std::vector<std::string> prompts;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    if (++number == 1 && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    check<UsageError>(line.find('\0') == std::string::npos, "the prompt file ", path.string(),
                      " holds a NUL character in line ", number, ". Give a text file in UTF-8.");
    if (line.find_first_not_of(" \t") != std::string::npos) prompts.push_back(line);
  }
  check<UsageError>(!prompts.empty(), "the prompt file ", path.string(),
                    " holds no prompt. Write one prompt on each line.");
  return prompts;
}

void check_suffix(const std::string& flag, const fs::path& path, const std::string& suffix) {
  check<UsageError>(path.extension() == suffix, flag, " is '", path.string(), "'. Give a name that ends in ", suffix,
                    ".");
}

void check_picture(const std::string& flag, const fs::path& path) {
  check<UsageError>(Image::is_picture_name(path), flag, " is '", path.string(),
                    "'. Give a name that ends in one of: ", joined(Image::extensions()), ".");
}

Prompts prompts_of(const std::vector<std::string>& texts) { return texts.empty() ? Prompts() : Prompts(texts); }

}  // namespace

void GenerateFlags::declare(Flags& flags) {
  flags
      .group("What to draw",
             "pardiff generate --model models/flux-shapes --prompt \"a red circle\" --height 64 --width 64 --steps 4 "
             "--output a.png")
      .text("--model", model, "A folder in the diffusers layout, or a repository id in the local Hugging Face cache")
      .text("--variant", variant, "Read the files of this variant, such as fp16; parts without are read plain")
      .path("--transformer", transformer, "Its weights from this single file, also of the original layout")
      .texts("--prompt", prompts, "What the picture shows; repeat for a batch")
      .texts("--prompt-2", prompts_2, "For the T5 encoder; default: --prompt")
      .path("--prompt-file", prompt_file, "Prompts from a file, one on each line")
      .texts("--negative-prompt", negative_prompts, "What the picture must not show; needs --true-cfg-scale above 1")
      .real("--true-cfg-scale", true_cfg_scale, {0, 1000}, "Strength of the negative prompt; default 1: none")
      .path("--from", from, "Repeat this picture: all that is not given is taken from what it carries")
      .path("--config", config, "Flags from a JSON file, by their names; those on the command line win");
  flags
      .group("Size, steps and seed",
             "pardiff generate --model models/flux-shapes --prompt \"a blue star\" --height 96 --width 64 --steps 8 "
             "--seed 7 --max-sequence-length 32 --output b.png")
      .integer("--height", height, {16, kMostPixelsPerSide}, "Pixels; default 1024")
      .integer("--width", width, {16, kMostPixelsPerSide}, "Pixels; default 1024")
      .integer("--steps", steps, {1, kMostSteps}, "Denoising steps; default 28")
      .real("--guidance-scale", guidance_scale, {0, 1000}, "Of the guidance embedding; default 3.5")
      .integer("--seed", seed, {0, std::numeric_limits<int64_t>::max()}, "Of the noise; default: a drawn one, printed")
      .integer("--max-sequence-length", max_sequence_length, {1, 512}, "Tokens of the T5 encoder; default 512")
      .integer("--num-images", num_images, {1, kMostImages}, "Pictures for each prompt; default 1");
  flags.group(
      "Ranks",
      "pardiff generate --model models/flux-shapes --prompt \"a green square\" --height 64 --width 64 --steps 4 "
      "--ulysses-degree 2 --output c.png");
  ranks.declare(flags);
  flags.group("Planned ranks",
              "pardiff generate --model models/flux-shapes --prompt \"a red square\" --height 64 --width 64 --steps 4 "
              "--parallel auto --nproc-per-node 2 --output p.png");
  ranks.declare_planning(flags);
  flags
      .group("Machine",
             "pardiff generate --model models/flux-shapes --prompt \"a red star\" --height 64 --width 64 --steps 4 "
             "--device cpu --dtype float32 --threads 1 --output d.png")
      .integer("--threads", threads, {1, kMostThreads},
               "CPU threads of each rank; default: OMP_NUM_THREADS, else cores / local ranks")
      .text("--attention-backend", attention_backend, "Attention kernels; see pardiff doctor")
      .choice("--device", device, {"cpu", "cuda"}, "Default: cuda when there is one")
      .choice("--comm", comm, {"auto", "shm", "gloo", "nccl"},
              "Transport between ranks: shm or gloo, nccl on CUDA; default auto")
      .choice("--dtype", dtype, {"auto", "float32", "bfloat16", "float16"},
              "Default auto: the checkpoint's on CUDA; on a CPU bfloat16 where it has AMX, else float32")
      .integer("--timeout", timeout_s, {1, kMostSeconds}, "Seconds that another rank may stand still; default 600");
  flags
      .group("Files and messages",
             "pardiff generate --model models/flux-shapes --prompt \"a red circle\" --height 64 --width 64 --steps 4 "
             "--report e.json --trace e-trace.json --verbose --output e.png")
      .path("--output", output, "The picture: .png, .jpg or .webp; several become FILE-0, FILE-1, ...")
      .path("--contact-sheet", contact_sheet, "All pictures of the run, small, in one")
      .integer("--preview", preview_every, {1, kMostSteps}, "Write FILE-preview every N steps: all pictures, small")
      .path("--report", report, "Write times, memory and traffic of every rank as JSON")
      .path("--trace", trace, "Write where every rank's time went, for Perfetto or chrome://tracing")
      .path("--dump-tensors", dump_tensors, "Write picture, latents of every step and token ids as safetensors");
  verbosity.declare(flags);
}

void GenerateFlags::validate() const {
  check<UsageError>(!model.empty(), "--model is missing. Give a folder in the diffusers layout, or a repository id.");
  check<UsageError>(!output.empty(), "--output is missing. Give the name of the picture to write.");
  check_picture("--output", output);
  if (!contact_sheet.empty()) check_picture("--contact-sheet", contact_sheet);
  if (!report.empty()) check_suffix("--report", report, ".json");
  if (!trace.empty()) check_suffix("--trace", trace, ".json");
  if (!dump_tensors.empty()) check_suffix("--dump-tensors", dump_tensors, ".safetensors");
  check<UsageError>(prompts.empty() || prompt_file.empty(), "both --prompt and --prompt-file are given. Choose one.");
  check<UsageError>(!prompts.empty() || !prompt_file.empty(), "--prompt is missing. Say what the picture shows.");
  check<UsageError>(comm != "nccl" || device != "cpu", "--comm is nccl, and --device is cpu. Use --comm gloo.");
  check<UsageError>(comm != "shm" || device != "cuda", "--comm is shm, and --device is cuda. Use --comm nccl.");
  if (!attention_backend.empty()) pardiff::attention_backend(attention_backend);  // throws for an unknown name
}

void GenerateFlags::read_prompt_file(int readers) {
  if (!prompt_file.empty()) prompts = prompts_in(prompt_file, readers);
}

WorldOptions GenerateFlags::world_options() const {
  return {
      .device = device, .comm = comm, .threads = static_cast<int>(threads), .timeout_s = static_cast<int>(timeout_s)};
}

FluxPipelineInputs GenerateFlags::pipeline_inputs() const {
  FluxPipelineInputs inputs{.prompt = prompts,
                            .prompt_2 = prompts_of(prompts_2),
                            .negative_prompt = prompts_of(negative_prompts),
                            .true_cfg_scale = true_cfg_scale,
                            .height = height,
                            .width = width,
                            .num_inference_steps = steps,
                            .guidance_scale = guidance_scale,
                            .num_images_per_prompt = num_images,
                            .max_sequence_length = max_sequence_length};
  if (seed) inputs.seed = Seeds(*seed);
  return inputs;
}

std::vector<fs::path> GenerateFlags::picture_paths() const {
  const auto count = static_cast<int64_t>(prompts.size()) * num_images;
  if (count == 1 || only) return {output};
  std::vector<fs::path> paths;
  for (int64_t i = 0; i < count; ++i) {
    paths.push_back(output.parent_path() / text_of(output.stem().string(), "-", i, output.extension().string()));
  }
  return paths;
}

fs::path GenerateFlags::preview_path() const {
  return output.parent_path() / text_of(output.stem().string(), "-preview", output.extension().string());
}

void GenerateFlags::check_outputs() const {
  auto paths = picture_paths();
  if (preview_every > 0) paths.push_back(preview_path());
  for (const auto& path : {contact_sheet, report, trace, dump_tensors}) {
    if (!path.empty()) paths.push_back(path);
  }
  std::set<fs::path> places;
  for (const auto& path : paths) {
    AtomicFile::check_writable(path);
    std::error_code ignored;
    check<UsageError>(places.insert(fs::weakly_canonical(path, ignored)).second, "two of the files to write are ",
                      path.string(), ". Give each its own name.");
  }
}

}  // namespace pardiff::cli
