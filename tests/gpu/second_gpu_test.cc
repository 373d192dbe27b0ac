// Tests a job on the second of two emulated GPUs.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/gpu/device_array.h"
#include "tests/gpu/emulated_cuda.h"
#include "tests/gpu/gpu_toy_worker.h"
#include "tests/testing/local_cluster.h"

namespace nereus {
namespace {

// A context takes memory of its GPU. If the processes on other GPUs also had
// contexts on the first GPU, its memory would run out.
TEST(SecondGpuTest, JobUsesNoOtherGpu) {
  LocalCluster cluster(GpuJob(2, 1));
  GpuOptions gpu;
  gpu.device = 1;
  std::vector<std::unique_ptr<GpuToyWorker>> workers(2);
  const auto results = cluster.RunWorkers(2, [&](int i) {
    NEREUS_CUDA(cudaSetDevice(1));
    workers[i] = std::make_unique<GpuToyWorker>();
    return workers[i]->Train(cluster.client_options(), 5, gpu);
  });
  EXPECT_TRUE(AllOk(results));
  std::thread([&] {
    for (const auto& worker : workers) worker->Die();
    int device = -1;
    NEREUS_CUDA(cudaGetDevice(&device));
    EXPECT_EQ(device, 0);  // Die has not changed the thread's device.
  }).join();
  std::thread([&] {
    NEREUS_CUDA(cudaSetDevice(1));
    EXPECT_EQ(workers[0]->parameters(), workers[1]->parameters());
    workers.clear();
  }).join();
  EXPECT_FALSE(cuda_emulation::HasContext(0));
}

}  // namespace
}  // namespace nereus
