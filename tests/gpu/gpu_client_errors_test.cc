// What a GPU's client makes of a GPU's errors, which are emulated.

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/status_macros.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/emulated_cuda.h"
#include "tests/gpu/gpu_toy_worker.h"
#include "tests/testing/local_cluster.h"
#include "worker/public/gpu_client.h"

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
  const absl::Status pushed =
      worker.client()->Push(0, begun->step, elsewhere, worker.stream());
  EXPECT_EQ(pushed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(pushed.message()),
              HasSubstr("layer conv, gradient is on GPU 1, this client uses "
                        "GPU 0"));
  NEREUS_CUDA(cudaFree(elsewhere));
}

// Whichever call fails, the job ends, with the reason, or does not notice.
TEST(GpuClientErrorsTest, AnyCallMayFail) {
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
      ServerOptions options;
      options.job_options.optimizer_place = kind.place;
      options.job_options.sparsity = kind.sparsity;
      options.job_options.block_elements = 32768;
      options.job_options.dense_steps = 1;
      options.job_options.nan = kind.nan;
      options.rules.wire =
          call % 2 == 0 ? WireType::kFloat32 : WireType::kBfloat16;
      LocalCluster cluster(options);
      GpuToyWorker worker;
      const absl::Status status = [&]() -> absl::Status {
        cuda_emulation::FailCallAfter(call);
        NEREUS_RETURN_IF_ERROR(worker.Connect(cluster.client_options()));
        for (int step = 0; step < 3; ++step) {
          NEREUS_ASSIGN_OR_RETURN(const StepInfo begun,
                                  worker.client()->BeginStep(worker.stream()));
          for (int layer = 2; layer >= 0; --layer) {
            NEREUS_RETURN_IF_ERROR(worker.client()->Push(
                layer, begun.step, worker.gradient(layer), worker.stream()));
          }
          NEREUS_RETURN_IF_ERROR(
              worker.client()->WaitAll(begun.step, worker.stream()));
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

}  // namespace
}  // namespace nereus
