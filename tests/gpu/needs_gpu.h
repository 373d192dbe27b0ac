#pragma once

#include <gtest/gtest.h>

#include "tests/gpu/device_array.h"

namespace nereus {

// Fixture that skips its tests if there is neither a GPU nor an emulated one.
template <typename Base>
struct NeedsGpu : Base {
  void SetUp() override {
    const char* const why = WhyNoGpu();
    if (why != nullptr) GTEST_SKIP() << "no GPU: " << why;
  }
};

}  // namespace nereus
