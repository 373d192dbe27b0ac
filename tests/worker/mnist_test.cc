// Trains on real handwriting. Set NEREUS_MNIST_DIR to a folder with the files
// of MNIST; without it the tests are skipped with a message.

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "common/compute/gemm.h"
#include "worker/trainer/idx_file.h"
#include "worker/trainer/network.h"
#include "worker/trainer/standalone_client.h"
#include "worker/trainer/trainer.h"

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

  double TrainedAccuracy(const char* model, float learning_rate,
                         int64_t epochs) {
    absl::StatusOr<std::unique_ptr<Network>> network = Network::Create(
        model, data_.train.image, data_.classes(), /*batch=*/128);
    EXPECT_TRUE(network.ok()) << network.status();
    (*network)->Initialize(1);
    OptimizerState state;
    OptimizerOptions optimizer;
    optimizer.learning_rate = learning_rate;
    optimizer.weight_decay = 0.0005f;
    absl::StatusOr<std::unique_ptr<Client>> client = StandaloneClient::Create(
        optimizer, *BindLayers(network->get(), &state));
    EXPECT_TRUE(client.ok()) << client.status();
    TrainerOptions options;
    options.epochs = epochs;
    const absl::StatusOr<TrainResult> result =
        Train(options, data_, network->get(), &state, client->get());
    EXPECT_TRUE(result.ok()) << result.status();
    return Accuracy(data_.test, data_.normalisation, network->get());
  }

  DataSplit data_;
};

TEST_F(MnistTest, HasTheKnownShape) {
  EXPECT_EQ(data_.train.image, (ImageShape{28, 28, 1}));
  EXPECT_EQ(data_.classes(), 10);
  EXPECT_NEAR(data_.normalisation.mean, 0.1307, 0.002);
  EXPECT_NEAR(data_.normalisation.deviation, 0.3081, 0.002);
}

TEST_F(MnistTest, CnnLearnsHandwriting) {
  EXPECT_GE(TrainedAccuracy("cnn", 0.02f, /*epochs=*/8), 0.982);
}

TEST_F(MnistTest, MlpLearnsHandwriting) {
  EXPECT_GE(TrainedAccuracy("mlp", 0.02f, /*epochs=*/8), 0.95);
}

}  // namespace
}  // namespace nereus
