#pragma once
#include "../../src/precompiled.h"
#include <gtest/gtest.h>
