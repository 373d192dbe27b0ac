// Tests how a GPU client handles errors of its GPU. The GPU is emulated.

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/device/pinned_pool.h"
#include "common/device/stager.h"
#include "common/protocol/job.h"
#include "common/tensor/value_range.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/emulated_cuda.h"
#include "tests/gpu/gpu_toy_worker.h"
#include "tests/testing/local_cluster.h"
#include "worker/gpu/gpu_mirror.h"
#include "worker/gpu/gpu_pools.h"
#include "worker/public/gpu.h"

namespace nereus {
namespace {

using testing::HasSubstr;

TEST(GpuClientErrorsTest, MemoryOfAnotherGpuIsNamed) {
  LocalCluster cluster(ServerOptions{});
  GpuToyWorker worker;
  ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
  const auto begun = worker.client()->BeginStep(worker.stream());
  ASSERT_TRUE(begun.ok()) << begun.status();
  float* elsewhere = nullptr;
  NEREUS_CUDA(cudaSetDevice(1));
  NEREUS_CUDA(cudaMalloc(reinterpret_cast<void**>(&elsewhere), 300 * 700 * 4));
  NEREUS_CUDA(cudaSetDevice(0));
  const absl::Status pushed = worker.client()->Push(
      0, begun->step, {elsewhere, 300 * 700}, worker.stream());
  EXPECT_EQ(pushed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(pushed.message()),
              HasSubstr("layer conv, gradient is on GPU 1, this client uses "
                        "GPU 0"));
  NEREUS_CUDA(cudaFree(elsewhere));
}

// The copies: the parameters, the arrays of the caller's state, those of the
// job's optimizer, two open rounds of a ring, and the last finished round.
TEST(GpuClientErrorsTest, PinnedMemoryHasRoomForAllCopiesOfALayer) {
  LayerBinding layer;
  layer.spec = {"v", LayerKind::kVector, 1, 250'000, 250'000, 1};
  const int64_t bytes = 4 * layer.spec.parameters;
  const GpuPools pools = MakeGpuPools({layer}, GpuOptions());
  std::vector<Buffer> copies;
  for (int i = 0; i < 1 + kStateArraysMax + kOptimizerStatesMax + 3; ++i) {
    auto copy = pools.own->Take("a copy", bytes, absl::ZeroDuration());
    ASSERT_TRUE(copy.ok()) << i << ": " << copy.status();
    copies.push_back(*std::move(copy));
  }
}

// In each job one CUDA call fails: call 0, 3, 6 and so on. Either the job ends
// with the reason, or the error has no effect.
TEST(GpuClientErrorsTest, JobEndsWithTheReasonWhenAnyCudaCallFails) {
  struct Kind {
    OptimizerPlace place = OptimizerPlace::kServer;
    double sparsity = 0.0;
    NanPolicy nan = NanPolicy::kFail;
  };
  for (const Kind& kind :
       {Kind{}, Kind{OptimizerPlace::kWorker},
        Kind{OptimizerPlace::kServer, 0.5},
        Kind{OptimizerPlace::kServer, 0.0, NanPolicy::kSkip}}) {
    int failed = 0;
    for (int call = 0; call < 400; call += 3) {
      ServerOptions options = PlainServerOptions();
      options.spec.options.optimizer_place = kind.place;
      options.spec.options.sparsity.share = kind.sparsity;
      options.spec.options.sparsity.block_elements = 32768;
      options.spec.options.sparsity.dense_steps = 1;
      options.spec.options.nan = kind.nan;
      options.spec.rules.wire =
          call % 2 == 0 ? WireType::kFloat32 : WireType::kBfloat16;
      LocalCluster cluster(options);
      GpuToyWorker worker;
      const absl::Status status = [&]() -> absl::Status {
        cuda_emulation::FailCallAfter(call);
        NEREUS_TRY(worker.Connect(cluster.client_options()));
        for (int step = 0; step < 3; ++step) {
          const StepInfo begun =
              NEREUS_TRY(worker.client()->BeginStep(worker.stream()));
          for (int layer = 2; layer >= 0; --layer) {
            NEREUS_TRY(worker.PushAsItIs(layer, begun.step));
          }
          NEREUS_TRY(worker.client()->WaitAll(begun.step, worker.stream()));
        }
        return worker.client()->Leave(worker.stream());
      }();
      cuda_emulation::FailCallAfter(-1);
      if (status.ok()) continue;
      ++failed;
      EXPECT_THAT(std::string(status.message()), HasSubstr("emulated error"))
          << call;
    }
    EXPECT_GT(failed, 30);
  }
}

// The test overwrites the parameters on the GPU, so AwaitJoined must copy the
// job's parameters there. If the call fails before the host client has joined,
// the job ends, and the second AwaitJoined fails, too.
TEST(GpuClientErrorsTest, AJoinThatFailsOnTheGpuMayBeRepeated) {
  int repeated = 0;
  for (int call = 0; call < 40; ++call) {
    LocalCluster cluster(PlainServerOptions());
    const std::vector<float> initial = {5.0f, 6.0f};
    const DeviceArray<float> parameters(initial);
    LayerBinding layer;
    layer.spec = {"pair", LayerKind::kVector, 1, 2, 2, 1};
    layer.parameters = parameters.span();
    auto client = JoinOnGpu(cluster.client_options(), GpuOptions(), {layer},
                            /*stream=*/nullptr);
    ASSERT_TRUE(client.ok()) << client.status();
    NEREUS_CUDA(
        cudaMemsetAsync(parameters.data(), 0, 2 * sizeof(float), nullptr));
    cuda_emulation::FailCallAfter(call);
    const absl::Status joined = (*client)->AwaitJoined(LocalCluster::kPatience);
    cuda_emulation::FailCallAfter(-1);
    if (joined.ok()) break;
    if (!(*client)->AwaitJoined(LocalCluster::kPatience).ok()) {
      continue;
    }
    ++repeated;
    EXPECT_EQ(parameters.Read(), initial) << call;
  }
  EXPECT_GT(repeated, 0);
}

// Land copies parameters that it could not copy in the round before.
TEST(GpuClientErrorsTest, FailedCopyOfParametersIsRepeatedInTheNextRound) {
  const auto stager = Stager::Create(0);
  ASSERT_TRUE(stager.ok()) << stager.status();
  const auto pool = PinnedPool::Create(0, 1 << 20);
  const DeviceArray<float> on_gpu(std::vector<float>(100, 1.0f));
  LayerBinding layer;
  layer.spec = {"v", LayerKind::kVector, 1, 100, 100, 1};
  layer.parameters = on_gpu.span();
  const auto mirror = GpuMirror::Create(
      layer, stager->get(), pool, Buffer::AllocateZeroed(sizeof(BadResult)),
      /*stream=*/nullptr);
  ASSERT_TRUE(mirror.ok()) << mirror.status();
  std::fill_n((*mirror)->parameters().floats(), 100, 2.0f);
  cuda_emulation::FailCallAfter(0);
  const ValueRange first = {0, 50};
  EXPECT_FALSE((*mirror)->Land({&first, 1}).ok());
  cuda_emulation::FailCallAfter(-1);
  const ValueRange last = {90, 100};
  const auto landed = (*mirror)->Land({&last, 1});
  ASSERT_TRUE(landed.ok()) << landed.status();
  ASSERT_TRUE((*stager)->Await("v", *landed).ok());
  EXPECT_EQ(on_gpu.Read(), std::vector<float>(100, 2.0f));
  // The last copy was complete. So this Land copies its range alone.
  std::fill_n((*mirror)->parameters().floats(), 100, 3.0f);
  const auto again = (*mirror)->Land({&last, 1});
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE((*stager)->Await("v", *again).ok());
  EXPECT_EQ(on_gpu.Read()[89], 2.0f);
  EXPECT_EQ(on_gpu.Read()[90], 3.0f);
}

}  // namespace
}  // namespace nereus
