#pragma once
#include <pardiff/plan/planner.h>

#include <optional>
#include <string>
#include <vector>

namespace pardiff::plan {

/// The transformer with names and shapes and no memory: what the library's checks look at.
FluxTransformer2DModel blank_transformer(const Work& work);

/// As the public one, with a transformer that is at hand.
std::string why_refused(const Work& work, FluxTransformer2DModelImpl& blank, const ParallelConfig& config, int ranks,
                        Profile profile);

/// The layout that a call of so few pictures runs: fsdp ranks without a picture of their own join the ring.
ParallelConfig as_run(const Work& work, const ParallelConfig& config);

/// As the public ones, of a layout that was checked and with a transformer that is at hand.
StepTime checked_step_time(const Work& work, const ParallelConfig& config, const Machine& machine, int ranks,
                           Profile profile);
RankMemory rank_memory(const Work& work, FluxTransformer2DModelImpl& blank, const ParallelConfig& config, int ranks,
                       Profile profile);

/// Every product of degrees that makes `ranks`, plain and with whole weights.
std::vector<ParallelConfig> all_layouts(int ranks);
/// The same with every flag that lifts a rule of lengths or heads; none without context parallelism.
std::optional<ParallelConfig> anything_form(const ParallelConfig& config);
/// The same with the weights over all axes that can share them; none if they are already.
std::optional<ParallelConfig> with_sharded_weights(const ParallelConfig& config);

}  // namespace pardiff::plan
