// Stands for a test that needs the headers of the CUDA Toolkit, without them.

#include <gtest/gtest.h>

TEST(EmulationTest, NeedsTheHeadersOfTheCudaToolkit) {
  GTEST_SKIP() << "no CUDA Toolkit in $CUDA_HOME or /usr/local/cuda";
}
