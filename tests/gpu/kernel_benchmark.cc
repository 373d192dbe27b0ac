// Measures the kernels against the speed at which the GPU copies its own
// memory:
//
//   tests/gpu/run.sh --benchmark
//
// Arrays have 100 MB as float32. The speed of a kernel is the number of bytes
// that it must read and write, over its time; it is compared with
// cudaMemcpyAsync from device to device. Times are medians of 20 measurements
// by CUDA events, of 10 launches in a row each, after 3 that do not count.
// Prints a table in Markdown; without a GPU it says so.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/compute/bfloat16_cuda.h"
#include "common/compute/blocks_cuda.h"
#include "common/compute/sums_cuda.h"
#include "common/compute/update_rules_cuda.h"
#include "tests/gpu/device_array.h"

namespace nereus {
namespace {

constexpr int64_t kCount = 25'000'000;
constexpr double kBytes = kCount * sizeof(float);
constexpr int64_t kBlock = 32768;
constexpr int kWarmUp = 3;
constexpr int kRepeats = 20;
constexpr int kInRow = 10;

using Work = std::function<cudaError_t(cudaStream_t)>;

// Queues work on a stream of its own, and times it.
class Table {
 public:
  Table() {
    NEREUS_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    NEREUS_CUDA(cudaEventCreate(&begin_));
    NEREUS_CUDA(cudaEventCreate(&end_));
  }
  ~Table() {
    NEREUS_CUDA(cudaEventDestroy(begin_));
    NEREUS_CUDA(cudaEventDestroy(end_));
    NEREUS_CUDA(cudaStreamDestroy(stream_));
  }

  // Shares are of the first row's speed.
  void Row(const std::string& what, double bytes, const Work& work) {
    const std::vector<double> seconds = Time(work);
    const double median = seconds[seconds.size() / 2];
    const double rate = bytes / median;
    if (copy_rate_ == 0) copy_rate_ = rate;
    std::printf("| %s | %.0f | %.3f (%.3f to %.3f) | %.1f | %.0f %% |\n",
                what.c_str(), bytes / 1e6, median * 1e3, seconds.front() * 1e3,
                seconds.back() * 1e3, rate / 1e9, 100 * rate / copy_rate_);
  }

 private:
  // Seconds, ascending.
  std::vector<double> Time(const Work& work) {
    std::vector<double> seconds;
    for (int i = 0; i < kWarmUp + kRepeats; ++i) {
      NEREUS_CUDA(cudaEventRecord(begin_, stream_));
      for (int k = 0; k < kInRow; ++k) NEREUS_CUDA(work(stream_));
      NEREUS_CUDA(cudaEventRecord(end_, stream_));
      NEREUS_CUDA(cudaEventSynchronize(end_));
      float milliseconds = 0;
      NEREUS_CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
      if (i >= kWarmUp) seconds.push_back(milliseconds / 1e3 / kInRow);
    }
    absl::c_sort(seconds);
    return seconds;
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  double copy_rate_ = 0;
};

struct Arrays {
  DeviceArray<float> a{std::vector<float>(kCount, 1.0f)};
  DeviceArray<float> b{std::vector<float>(kCount, 2.0f)};
  DeviceArray<float> c{std::vector<float>(kCount, 0.5f)};
  DeviceArray<float> d{std::vector<float>(kCount, 0.25f)};
  DeviceArray<uint16_t> halves{std::vector<uint16_t>(kCount, 0)};
};

void PrintValues(Table& table, const Arrays& on) {
  const DeviceArray<int64_t> first({kAllFinite});
  table.Row("look for NaNs", kBytes, [&](cudaStream_t stream) {
    return FindNotFiniteCuda(on.b.data(), kCount, first.data(), stream);
  });
  table.Row("to bf16", 1.5 * kBytes, [&](cudaStream_t stream) {
    return ToBfloat16Cuda(on.b.data(), kCount, on.halves.data(), stream);
  });
}

void PrintBlocks(Table& table, const Arrays& on) {
  const BlockPieces pieces = {kCount, kBlock, 0};
  const DeviceArray<float> norms(std::vector<float>(pieces.Count(), 0.0f));
  const DeviceArray<PieceUse> held(
      std::vector<PieceUse>(pieces.Count(), PieceUse::kHeld));
  const DeviceArray<PieceUse> travel(
      std::vector<PieceUse>(pieces.Count(), PieceUse::kTravels));
  std::vector<int32_t> chosen;
  for (int32_t k = 0; k < pieces.Count(); k += 2) chosen.push_back(k);
  const auto count = std::ssize(chosen);
  const DeviceArray<int32_t> on_chosen(chosen);
  const auto split = [&](const DeviceArray<PieceUse>& uses) {
    return [&](cudaStream_t stream) {
      return SplitPiecesCuda(pieces, 0.9f, 0.0005f, uses.data(), on.b.data(),
                             on.a.data(), on.c.data(), on.d.data(),
                             norms.data(), stream);
    };
  };
  table.Row("norms of blocks", kBytes, split(travel));
  table.Row("hold blocks back", 6 * kBytes, split(held));
  table.Row("gather half of the blocks", kBytes, [&](cudaStream_t stream) {
    return GatherPiecesCuda(pieces, on_chosen.data(), count, on.a.data(),
                            on.b.data(), stream);
  });
}

void PrintUpdates(Table& table, const Arrays& on) {
  const SgdStep sgd = {1.0f, 0.0005f, 0.9f, 0.01f};
  const AdamStep adam = {1.0f, 0.0005f, 0.9f, 0.999f, 0.01f, 1.0f, 1e-8f};
  table.Row("sgd", 5 * kBytes, [&](cudaStream_t stream) {
    return ApplySgdCuda(sgd, kCount, on.a.data(), on.b.data(), on.c.data(),
                        on.b.data(), stream);
  });
  table.Row("adam", 7 * kBytes, [&](cudaStream_t stream) {
    return ApplyAdamCuda(adam, kCount, on.a.data(), on.b.data(), on.c.data(),
                         on.d.data(), on.b.data(), stream);
  });
}

void PrintStaging(Table& table, const Arrays& on) {
  void* host = nullptr;
  const auto bytes = static_cast<size_t>(kBytes);
  NEREUS_CUDA(cudaHostAlloc(&host, bytes, cudaHostAllocDefault));
  table.Row("staging, to pinned memory", kBytes, [&](cudaStream_t stream) {
    return cudaMemcpyAsync(host, on.a.data(), bytes, cudaMemcpyDeviceToHost,
                           stream);
  });
  table.Row("staging, from pinned memory", kBytes, [&](cudaStream_t stream) {
    return cudaMemcpyAsync(on.a.data(), host, bytes, cudaMemcpyHostToDevice,
                           stream);
  });
  NEREUS_CUDA(cudaFreeHost(host));
}

void Run() {
  cudaDeviceProp properties = {};
  NEREUS_CUDA(cudaGetDeviceProperties(&properties, 0));
  std::printf(
      "%s\n\n| kernel | MB | ms | GB/s | of a copy |\n"
      "| --- | --- | --- | --- | --- |\n",
      properties.name);
  const Arrays on;
  Table table;
  table.Row("copy", 2 * kBytes, [&](cudaStream_t stream) {
    return cudaMemcpyAsync(on.b.data(), on.a.data(),
                           static_cast<size_t>(kBytes),
                           cudaMemcpyDeviceToDevice, stream);
  });
  PrintValues(table, on);
  PrintBlocks(table, on);
  PrintUpdates(table, on);
  PrintStaging(table, on);
}

}  // namespace
}  // namespace nereus

int main() {
  const char* const why = nereus::WhyNoGpu();
  if (why != nullptr) {
    std::printf("SKIPPED kernel_benchmark: no GPU: %s\n", why);
    return 0;
  }
  nereus::Run();
  return 0;
}
