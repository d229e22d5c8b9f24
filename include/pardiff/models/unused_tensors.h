#pragma once
#include <pardiff/models/load.h>

#include <string>
#include <vector>

namespace pardiff {

/// The tensors of a source that no parameter of a module takes, in the source's order.
struct UnusedTensors {
  /// Of a part that the module has (a block too many): check_parameters refuses them.
  std::vector<std::string> refused;
  /// Of a part that it does not have (a vision model beside a text model): loading warns of them.
  std::vector<std::string> let_be;
};

UnusedTensors unused_tensors(const torch::nn::Module& module, const ParameterSource& source,
                             const LoadOptions& options = {});

}  // namespace pardiff
