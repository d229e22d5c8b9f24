#include "pipelines/flux_memory.h"

#include <pardiff/core/check.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace pardiff::flux {
namespace {

// A single block holds at once: its input and norm, query, key and value, the feed-forward's 4, their
// concatenation's 5.
constexpr double kLiveStreams = 14;
// The decoder's last level: a resnet's input, its norm and one convolution's result.
constexpr double kLivePlanes = 3;

// Of the machine, or of the container that holds this process. Not what is free just now: that differs from rank to
// rank and from moment to moment.
double machine_bytes() {
  double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    double limit = 0;  // "max" is no number and leaves the stream failed
    if (std::ifstream file(path); file >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

double gigabytes(double bytes) { return std::round(bytes / 1e8) / 10; }

}  // namespace

double least_memory(const Workload& work, const FluxTransformerConfig& transformer, const AutoencoderKLConfig& vae) {
  const auto pictures = static_cast<double>(work.pictures), at_once = static_cast<double>(work.pictures_at_once);
  const auto bytes = static_cast<double>(work.bytes_per_value);
  const double pixels = static_cast<double>(work.height) * static_cast<double>(work.width);
  const double tokens =
      static_cast<double>(work.image_tokens + work.text_tokens) / static_cast<double>(work.context_ranks);
  const double denoising = kLiveStreams * bytes * at_once * tokens * static_cast<double>(transformer.inner_dim());
  const auto& widths = vae.block_out_channels;
  const auto channels = static_cast<double>(widths[std::min<size_t>(1, widths.size() - 1)]);
  const double decoding = pixels * (kLivePlanes * bytes * channels / static_cast<double>(work.decoding_ranks) +
                                    3 * sizeof(float) * pictures);
  return std::max(denoising, decoding);
}

void check_memory(double least, const Workload& work, const World& world) {
  if (!world.device().is_cpu()) return;
  const double available = machine_bytes() / world.local_size();
  check<ConfigError>(least <= available, work.pictures, work.pictures == 1 ? " picture" : " pictures", " of ",
                     work.height, "x", work.width, work.pictures == 1 ? " needs" : " need", " at least ",
                     gigabytes(least), " GB of memory beside the weights, and this machine has ", gigabytes(available),
                     " GB for each of its ranks (", world.local_size(),
                     "). Choose a smaller size or fewer pictures at once.");
}

}  // namespace pardiff::flux
