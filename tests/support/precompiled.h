#pragma once
#include <gtest/gtest.h>

#include "../../src/precompiled_modules.h"
