#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/pipelines/flux_inputs.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/ranks.h"
#include "cli/verbosity.h"

namespace pardiff::cli {

class Flags;

/// What `pardiff generate` is told.
struct GenerateFlags {
  std::string model;
  std::string variant;
  std::filesystem::path transformer;
  std::vector<std::string> prompts, prompts_2, negative_prompts;
  std::filesystem::path prompt_file;
  double true_cfg_scale = 1.0;
  std::optional<int64_t> height{}, width{}, seed{};
  int64_t steps = 28;
  double guidance_scale = 3.5;
  int64_t max_sequence_length = 512;
  int64_t num_images = 1;

  RankFlags ranks;
  int64_t threads = 0;  // 0: not given
  std::string attention_backend;
  std::string device = "auto", comm = "auto", dtype = "auto";
  int64_t timeout_s = 600;

  std::filesystem::path from, config;
  /// Of the batch only this picture is written: the one that is repeated.
  std::optional<int64_t> only{};

  std::filesystem::path output, contact_sheet, report, trace, dump_tensors;
  int64_t preview_every = 0;  // steps; 0: no previews
  Verbosity verbosity;

  void declare(Flags& flags);
  /// Checks what one flag alone cannot show. Throws: UsageError; ConfigError for an unknown attention backend.
  void validate() const;
  /// Takes the prompts from the prompt file, if there is one, which `readers` ranks do.
  /// Throws: UsageError; CheckpointError if it cannot be read.
  void read_prompt_file(int readers);

  WorldOptions world_options() const;
  FluxPipelineInputs pipeline_inputs() const;
  /// Every picture that will be written: FILE, or FILE-0, FILE-1, ... for several pictures.
  std::vector<std::filesystem::path> picture_paths() const;
  /// "FILE-preview.png"
  std::filesystem::path preview_path() const;
  /// Throws: UsageError or CheckpointError if one of the output files cannot be written.
  void check_outputs() const;
};

}  // namespace pardiff::cli
