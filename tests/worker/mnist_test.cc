// Trains on real handwriting. Set NEREUS_MNIST_DIR to a folder with the files
// of MNIST; without it the tests are skipped with a message.

#include <gtest/gtest.h>

#include <cstdlib>

#include "common/compute/gemm.h"
#include "tests/worker/layer_checks.h"
#include "worker/trainer/idx_file.h"

namespace nereus {
namespace {

class MnistTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* directory = std::getenv("NEREUS_MNIST_DIR");
    if (directory == nullptr) {
      GTEST_SKIP() << "NEREUS_MNIST_DIR is not set: no data to train on";
    }
    SetGemmThreads(1);
    absl::StatusOr<DataSplit> data =
        LoadDirectory(directory, /*holdout=*/0.2, /*limit=*/10000);
    ASSERT_TRUE(data.ok()) << data.status();
    data_ = *std::move(data);
  }

  double AccuracyOf(const char* model) {
    OptimizerOptions optimizer;
    optimizer.learning_rate = 0.02f;
    optimizer.weight_decay = 0.0005f;
    return TrainedAccuracy(model, data_, optimizer, /*batch=*/128,
                           /*epochs=*/8);
  }

  DataSplit data_;
};

TEST_F(MnistTest, HasTheKnownShape) {
  EXPECT_EQ(data_.train.image, (ImageShape{28, 28, 1}));
  EXPECT_EQ(data_.classes(), 10);
  EXPECT_NEAR(data_.normalisation.mean, 0.1307, 0.002);
  EXPECT_NEAR(data_.normalisation.deviation, 0.3081, 0.002);
}

TEST_F(MnistTest, CnnLearnsHandwriting) { EXPECT_GE(AccuracyOf("cnn"), 0.982); }

TEST_F(MnistTest, MlpLearnsHandwriting) { EXPECT_GE(AccuracyOf("mlp"), 0.95); }

}  // namespace
}  // namespace nereus
