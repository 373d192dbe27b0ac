#include "worker/trainer/standalone_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A standalone client with two layers: "bias", a vector of 2, and "fc", 1 x 2
// with a bias and 2 rows.
class StandaloneClientTest : public testing::Test {
 protected:
  void SetUp() override {
    bindings_ = {
        {{"bias", LayerKind::kVector, 2, 1, 2, 1}, absl::MakeSpan(bias_)},
        {{"fc", LayerKind::kFullyConnected, 1, 2, 3, 2, true},
         absl::MakeSpan(fc_)}};
    optimizer_.learning_rate = 0.5f;
    optimizer_.momentum = 0.5f;
    absl::StatusOr<std::unique_ptr<Client>> client =
        StandaloneClient::Create(optimizer_, bindings_);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  OptimizerOptions optimizer_;
  std::vector<float> bias_ = {1, 2};
  std::vector<float> fc_ = {1, 2, 3};
  std::vector<float> gradient_ = {2, -4};
  std::vector<float> output_gradient_ = {1, 2};
  std::vector<float> input_ = {2, 4, 6, 8};
  Factors factors_ = {output_gradient_, input_};
  std::vector<LayerBinding> bindings_;
  std::unique_ptr<Client> client_;
};

void ExpectInvalid(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST_F(StandaloneClientTest, EachStepHasOneContribution) {
  for (int64_t expected = 0; expected < 3; ++expected) {
    const absl::StatusOr<StepInfo> step = client_->BeginStep();
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->step, expected);
    EXPECT_EQ(step->position, 0);
    EXPECT_EQ(step->workers, 1);
    EXPECT_EQ(step->contributions_before, expected);
  }
}

TEST_F(StandaloneClientTest, StepsFollowTheOptimizer) {
  ASSERT_TRUE(client_->Push(0, 0, absl::MakeSpan(gradient_)).ok());
  ASSERT_TRUE(client_->Wait(0, 0).ok());
  EXPECT_THAT(bias_, ElementsAre(0, 4));  // The velocity is 2, -4.
  ASSERT_TRUE(client_->Push(0, 1, absl::MakeSpan(gradient_)).ok());
  ASSERT_TRUE(client_->Wait(0, 1).ok());
  EXPECT_THAT(bias_, ElementsAre(-1.5f, 7));  // The velocity is 3, -6.
}

TEST_F(StandaloneClientTest, FactorsHaveTheEffectOfTheirProduct) {
  std::vector<float> product = {1 * 2 + 2 * 6, 1 * 4 + 2 * 8, 1 + 2};
  ASSERT_TRUE(client_->PushFactors(1, 0, factors_, {}).ok());
  ASSERT_TRUE(client_->Wait(1, 0).ok());
  EXPECT_THAT(fc_, ElementsAre(1 - 7, 2 - 10, 3 - 1.5f));
  fc_ = {1, 2, 3};
  auto dense = StandaloneClient::Create(optimizer_, bindings_);
  ASSERT_TRUE((*dense)->Push(1, 0, absl::MakeSpan(product)).ok());
  ASSERT_TRUE((*dense)->Wait(1, 0).ok());
  EXPECT_THAT(fc_, ElementsAre(1 - 7, 2 - 10, 3 - 1.5f));
}

TEST_F(StandaloneClientTest, AdamStartsItsStepsAtOne) {
  optimizer_.rule = UpdateRule::kAdam;
  auto client = StandaloneClient::Create(optimizer_, bindings_);
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->Push(0, 0, absl::MakeSpan(gradient_)).ok());
  // The first step of Adam is as long as the learning rate, whatever the
  // gradient.
  EXPECT_FLOAT_EQ(bias_[0], 0.5f);
  EXPECT_FLOAT_EQ(bias_[1], 2.5f);
}

TEST_F(StandaloneClientTest, ReportCountsTheRoundsOfEachLayer) {
  ASSERT_TRUE(client_->Push(0, 0, absl::MakeSpan(gradient_)).ok());
  ASSERT_TRUE(client_->PushFactors(1, 0, factors_, {}).ok());
  ASSERT_TRUE(client_->WaitAll(0).ok());
  const std::vector<LayerReport> reports = client_->Report().layers;
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[1].name, "fc");
  EXPECT_EQ(reports[1].rounds, 1);
}

TEST_F(StandaloneClientTest, BadModelsAndOptionsAreRefused) {
  optimizer_.momentum = 1.5f;
  ExpectInvalid(StandaloneClient::Create(optimizer_, bindings_).status(),
                "momentum is 1.5");
  optimizer_.momentum = 0.5f;
  bindings_[0] = bindings_[1];
  EXPECT_EQ(StandaloneClient::Create(optimizer_, bindings_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nereus
