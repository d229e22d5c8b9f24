// For modules and what is made of them: headers of libtorch that most files need; each costs seconds to parse.
#pragma once
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include "precompiled_tensors.h"
