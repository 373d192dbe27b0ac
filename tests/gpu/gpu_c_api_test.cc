// The C interface with layers in a GPU's memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/device_array.h"
#include "tests/gpu/gpu_toy_worker.h"
#include "tests/testing/local_cluster.h"
#include "worker/c_api/nereus.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kPatienceMs = 120'000;

std::string LastError() { return nereus_last_error(); }

class GpuCApiTest : public NeedsGpu<testing::Test> {};

TEST_F(GpuCApiTest, AStepUpdatesParametersOnTheGpuInOrderWithTheStream) {
  ServerOptions server = PlainServerOptions();
  server.spec.workers = 1;
  server.spec.options.optimizer.learning_rate = 1.0f;
  server.spec.options.optimizer.momentum = 0.0f;
  const LocalCluster cluster(server);
  const std::string coordinator = cluster.coordinator_address();
  cudaStream_t stream = nullptr;
  NEREUS_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  {
    DeviceArray<float> parameters(std::vector<float>{5.0f, 5.0f});
    DeviceArray<float> gradient(std::vector<float>{1.0f, 2.0f});
    nereus_client_options options = {};
    options.size = sizeof(options);
    options.coordinator_address = coordinator.c_str();
    options.memory = NEREUS_MEMORY_CUDA;
    nereus_layer layer = {};
    layer.size = sizeof(layer);
    layer.name = "pair";
    layer.m = 1;
    layer.n = 2;
    layer.parameters_count = 2;
    layer.rows = 1;
    layer.parameters = parameters.data();
    nereus_client* client = nullptr;
    ASSERT_EQ(nereus_client_connect(&options, &layer, 1, stream, &client),
              NEREUS_OK)
        << LastError();
    nereus_code code = NEREUS_DEADLINE_EXCEEDED;
    while (code == NEREUS_DEADLINE_EXCEEDED) {
      code = nereus_client_wait_connected(client, 1, stream);
    }
    ASSERT_EQ(code, NEREUS_OK) << LastError();
    nereus_step step = {};
    step.size = sizeof(step);
    ASSERT_EQ(nereus_client_begin_step(client, kPatienceMs, stream, &step),
              NEREUS_OK)
        << LastError();

    EXPECT_EQ(nereus_client_push(client, 0, 0, gradient.data(), 3, stream),
              NEREUS_INVALID_ARGUMENT);
    EXPECT_THAT(LastError(), HasSubstr("has 3 values, must have 2"));
    EXPECT_EQ(nereus_client_push(client, 1, 0, gradient.data(), 2, stream),
              NEREUS_INVALID_ARGUMENT);
    const float* mean = nullptr;
    int64_t length = 0;
    EXPECT_EQ(nereus_client_mean(client, 0, &mean, &length),
              NEREUS_FAILED_PRECONDITION);

    ASSERT_EQ(nereus_client_push(client, 0, 0, gradient.data(), 2, stream),
              NEREUS_OK)
        << LastError();
    code = NEREUS_DEADLINE_EXCEEDED;
    while (code == NEREUS_DEADLINE_EXCEEDED) {
      code = nereus_client_wait_all(client, 0, 1, stream);
    }
    ASSERT_EQ(code, NEREUS_OK) << LastError();
    NEREUS_CUDA(cudaStreamSynchronize(stream));
    EXPECT_THAT(parameters.Read(), ElementsAre(4.0f, 3.0f));
    ASSERT_EQ(nereus_client_leave(client, kPatienceMs, stream), NEREUS_OK)
        << LastError();
    nereus_client_close(client);
  }
  NEREUS_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace nereus
