// A process of an all-reduce by Gloo over TCP, for ../sync_benchmark.py.
//
//   gloo_sync RANK PROCESSES BYTES WARM_UP REPEATS ALGORITHM HOST FOLDER
//
// ALGORITHM is ring-chunked or halving-doubling (Gloo's older interface, set up
// once for all rounds), or allreduce (its newer interface). FOLDER is empty and
// the same for all processes. For each timed round, rank 0 prints "time
// SECONDS". At the end each process prints "process CPU_SECONDS PEAK_BYTES";
// the CPU time covers all rounds, the warm-up included.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gloo/allreduce.h"
#include "gloo/allreduce_halving_doubling.h"
#include "gloo/allreduce_ring_chunked.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/device.h"

namespace {

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) /
             1e6;
}

long long PeakBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024LL;
}

// Returns a function that runs a round over `values`, in place.
std::function<void()> Prepare(const std::string& algorithm,
                              const std::shared_ptr<gloo::Context>& context,
                              std::vector<float>& values) {
  std::shared_ptr<gloo::Algorithm> old;
  const std::vector<float*> pointers = {values.data()};
  const int count = static_cast<int>(values.size());
  if (algorithm == "ring-chunked") {
    old = std::make_shared<gloo::AllreduceRingChunked<float>>(context, pointers,
                                                              count);
  } else if (algorithm == "halving-doubling") {
    old = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(
        context, pointers, count);
  }
  if (old != nullptr) return [old] { old->run(); };
  return [context, &values] {
    gloo::AllreduceOptions options(context);
    options.setOutput(values.data(), values.size());
    options.setReduceFunction(
        [](void* out, const void* a, const void* b, size_t elements) {
          gloo::sum<float>(out, a, b, elements);
        });
    gloo::allreduce(options);
  };
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(stderr, "usage: see the top of gloo_sync.cc\n");
    return 2;
  }
  const int rank = std::atoi(argv[1]);
  const int processes = std::atoi(argv[2]);
  const size_t elements = std::strtoull(argv[3], nullptr, 10) / sizeof(float);
  const int warm_up = std::atoi(argv[4]);
  const int repeats = std::atoi(argv[5]);
  const std::string algorithm = argv[6];

  gloo::transport::tcp::attr attributes(argv[7]);
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(argv[8]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, processes);
  context->connectFullMesh(store, device);

  std::vector<float> values(elements, static_cast<float>(rank + 1));
  const std::function<void()> run = Prepare(algorithm, context, values);
  const double cpu = CpuSeconds();
  for (int round = 0; round < warm_up + repeats; ++round) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - start;
    if (round == 0) {
      const auto sum = static_cast<float>(processes * (processes + 1) / 2);
      if (std::any_of(values.begin(), values.end(),
                      [sum](float value) { return value != sum; })) {
        std::fprintf(stderr, "the sum is wrong\n");
        return 1;
      }
      // Repeated sums would overflow soon.
      std::fill(values.begin(), values.end(), 0.0f);
    }
    if (rank == 0 && round >= warm_up) std::printf("time %.9f\n", took.count());
  }
  std::printf("process %.6f %lld\n", CpuSeconds() - cpu, PeakBytes());
  return 0;
}
