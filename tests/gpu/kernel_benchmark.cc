// kernel_benchmark: measures the kernels against the speed at which the GPU
// copies its own memory:
//
//   tests/gpu/kernel_benchmark [--json] [--values=N]
//
// Arrays have N values, 100 million by default: 400 MB as float32, far more
// than the caches of any GPU hold. The speed of a kernel is the number of bytes
// that it must read and write, over its time; it is compared with
// cudaMemcpyAsync from device to device. The time of a kernel is the median of
// 20 measurements by CUDA events, after 3 that do not count. Each measurement
// has 10 launches in a row, and gives the time of one. Prints a line about the
// GPU, then a table in Markdown, or with --json one JSON object per line,
// {"name", "megabytes", "milliseconds", "milliseconds_min", "milliseconds_max",
// "gigabytes_per_second", "percent_of_copy"}. Without a GPU it says so and
// exits with 0.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

constexpr int64_t kBlock = 32768;
constexpr int kWarmUp = 3;
constexpr int kRepeats = 20;
constexpr int kInRow = 10;

using Work = std::function<cudaError_t(cudaStream_t)>;

// Table of kernels. Runs each kernel on the table's stream, times it, and
// prints its row.
class Table {
 public:
  explicit Table(bool json) : json_(json) {
    NEREUS_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    NEREUS_CUDA(cudaEventCreateWithFlags(&begin_, cudaEventDefault));
    NEREUS_CUDA(cudaEventCreateWithFlags(&end_, cudaEventDefault));
    if (json_) return;
    std::printf(
        "| kernel | MB | ms | GB/s | of a copy |\n"
        "| --- | --- | --- | --- | --- |\n");
  }
  ~Table() {
    NEREUS_CUDA(cudaEventDestroy(begin_));
    NEREUS_CUDA(cudaEventDestroy(end_));
    NEREUS_CUDA(cudaStreamDestroy(stream_));
  }

  // Times `work`, which must read and write `bytes` in total, and prints its
  // row. The row's percentage is relative to the speed of the first row.
  void Row(const std::string& what, double bytes, const Work& work) {
    const std::vector<double> seconds = Time(work);
    const double median = seconds[seconds.size() / 2];
    const double rate = bytes / median;
    if (copy_rate_ == 0) copy_rate_ = rate;
    std::printf(json_
                    ? "{\"name\": \"%s\", \"megabytes\": %.1f, "
                      "\"milliseconds\": %.4f, "
                      "\"milliseconds_min\": %.4f, "
                      "\"milliseconds_max\": %.4f, "
                      "\"gigabytes_per_second\": %.4g, "
                      "\"percent_of_copy\": %.4g}\n"
                    : "| %s | %.0f | %.3f (%.3f to %.3f) | %.1f | %.0f %% |\n",
                what.c_str(), bytes / 1e6, median * 1e3, seconds.front() * 1e3,
                seconds.back() * 1e3, rate / 1e9, 100 * rate / copy_rate_);
    std::fflush(stdout);
  }

 private:
  // Returns the seconds of one launch in each measurement, ascending.
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

  const bool json_;  // Rows are JSON objects, not lines of Markdown.
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  double copy_rate_ = 0;  // Bytes per second of the first row.
};

// Operands of the kernels.
struct Arrays {
  explicit Arrays(int64_t new_count) : count(new_count) {}

  const int64_t count;  // Number of values of each array.
  const double bytes = static_cast<double>(count) * sizeof(float);
  DeviceArray<float> a{std::vector<float>(count, 1.0f)};
  DeviceArray<float> b{std::vector<float>(count, 2.0f)};
  DeviceArray<float> c{std::vector<float>(count, 0.5f)};
  DeviceArray<float> d{std::vector<float>(count, 0.25f)};
  DeviceArray<uint16_t> halves{std::vector<uint16_t>(count, 0)};
};

void PrintValues(Table& table, const Arrays& on) {
  const DeviceArray<int64_t> first({kNoneFound});
  table.Row("look for NaNs", on.bytes, [&](cudaStream_t stream) {
    return FindTooLargeCuda(on.b.data(), on.count, first.data(), stream);
  });
  table.Row("to bf16", 1.5 * on.bytes, [&](cudaStream_t stream) {
    return ToBfloat16Cuda(on.b.data(), on.count, on.halves.data(), stream);
  });
}

void PrintBlocks(Table& table, const Arrays& on) {
  const BlockPieces pieces = {on.count, kBlock, 0};
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
  table.Row("norms of blocks", on.bytes, split(travel));
  table.Row("hold blocks back", 6 * on.bytes, split(held));
  table.Row("gather half of the blocks", on.bytes, [&](cudaStream_t stream) {
    return GatherPiecesCuda(pieces, on_chosen.data(), count, on.a.data(),
                            on.b.data(), stream);
  });
}

void PrintUpdates(Table& table, const Arrays& on) {
  const SgdStep sgd = {1.0f, 0.0005f, 0.9f, 0.01f};
  const AdamStep adam = {1.0f, 0.0005f, 1.0f, 0.9f, 0.999f, 0.01f, 1.0f, 1e-8f};
  table.Row("sgd", 5 * on.bytes, [&](cudaStream_t stream) {
    return ApplySgdCuda(sgd, on.count, on.a.data(), on.b.data(), on.c.data(),
                        on.b.data(), /*note=*/{}, stream);
  });
  table.Row("adam", 7 * on.bytes, [&](cudaStream_t stream) {
    return ApplyAdamCuda(adam, on.count, on.a.data(), on.b.data(), on.c.data(),
                         on.d.data(), on.b.data(), /*note=*/{}, stream);
  });
}

void PrintStaging(Table& table, const Arrays& on) {
  void* host = nullptr;
  const auto bytes = static_cast<size_t>(on.bytes);
  NEREUS_CUDA(cudaHostAlloc(&host, bytes, cudaHostAllocDefault));
  table.Row("staging, to pinned memory", on.bytes, [&](cudaStream_t stream) {
    return cudaMemcpyAsync(host, on.a.data(), bytes, cudaMemcpyDeviceToHost,
                           stream);
  });
  table.Row("staging, from pinned memory", on.bytes, [&](cudaStream_t stream) {
    return cudaMemcpyAsync(on.a.data(), host, bytes, cudaMemcpyHostToDevice,
                           stream);
  });
  NEREUS_CUDA(cudaFreeHost(host));
}

void Run(bool json, int64_t count) {
  cudaDeviceProp properties = {};
  NEREUS_CUDA(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s\n\n", properties.name);
  const Arrays on(count);
  Table table(json);
  table.Row("copy", 2 * on.bytes, [&](cudaStream_t stream) {
    return cudaMemcpyAsync(on.b.data(), on.a.data(),
                           static_cast<size_t>(on.bytes),
                           cudaMemcpyDeviceToDevice, stream);
  });
  PrintValues(table, on);
  PrintBlocks(table, on);
  PrintUpdates(table, on);
  PrintStaging(table, on);
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) {
  bool json = false;
  int64_t count = 100'000'000;
  constexpr char kValues[] = "--values=";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strncmp(argv[i], kValues, std::strlen(kValues)) == 0) {
      count = std::atoll(argv[i] + std::strlen(kValues));
    } else {
      count = 0;
    }
  }
  if (count < 1) {
    std::fprintf(stderr, "usage: kernel_benchmark [--json] [--values=N]\n");
    return 2;
  }
  const char* const why = nereus::WhyNoGpu();
  if (why != nullptr) {
    std::printf("SKIPPED kernel_benchmark: no GPU: %s\n", why);
    return 0;
  }
  nereus::Run(json, count);
  return 0;
}
