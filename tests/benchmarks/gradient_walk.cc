// Lists the functions on the way of a dense gradient: a job of one worker and
// one server in this process, over TCP, with all features off. Records the
// functions that are entered in one step after the first ones.
//
//   bazel build --config=walk //tests/benchmarks:gradient_walk
//   tests/benchmarks/sizes.py
//
// --config=walk makes the compiler call the functions below at the begin and at
// the end of each function of the project. Prints a line for each entered
// function, "push ADDRESS" for those that Client::Push has called on its own
// thread, and "other ADDRESS". Addresses count from the begin of the program.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tests/testing/local_cluster.h"
#include "worker/public/client.h"

extern const char __executable_start;  // Symbol that the linker defines.

namespace {

constexpr size_t kEntriesMax = size_t{1} << 20;

struct Entry {
  uintptr_t function = 0;
  bool in_push = false;
};

std::atomic<bool> records = false;
std::atomic<size_t> entry_count = 0;
Entry entries[kEntriesMax];
thread_local bool in_push = false;

}  // namespace

extern "C" {

// NOLINTBEGIN(bugprone-reserved-identifier): the compiler chose the names.
void __cyg_profile_func_enter(void* function, void* /*caller*/) {
  if (!records.load(std::memory_order_relaxed)) return;
  const size_t index = entry_count.fetch_add(1, std::memory_order_relaxed);
  if (index >= kEntriesMax) return;
  entries[index] = {reinterpret_cast<uintptr_t>(function) -
                        reinterpret_cast<uintptr_t>(&__executable_start),
                    in_push};
}
void __cyg_profile_func_exit(void* /*function*/, void* /*caller*/) {}
// NOLINTEND(bugprone-reserved-identifier)

}  // extern "C"

namespace nereus {
namespace {

absl::Status Walk() {
  constexpr int64_t kParameters = 100'000;
  ServerOptions server = PlainServerOptions();
  server.spec.workers = 1;
  server.spec.shards = 1;
  LocalCluster cluster(server);
  ClientOptions options = cluster.client_options();
  options.shared_memory = false;
  std::vector<float> parameters(kParameters);
  std::vector<float> gradient(kParameters, 1.0f);
  const LayerSpec layer = {"v",         LayerKind::kVector, 1,
                           kParameters, kParameters,        1};
  const auto client = NEREUS_TRY(
      Client::Connect(options, {{layer, absl::MakeSpan(parameters)}}));
  for (int64_t step = 0; step < 10; ++step) {
    const StepInfo begun = NEREUS_TRY(client->BeginStep());
    records = step == 9;
    in_push = true;
    const absl::Status pushed =
        client->Push(/*layer=*/0, begun.step, absl::MakeSpan(gradient));
    in_push = false;
    NEREUS_TRY(pushed);
    NEREUS_TRY(client->WaitAll(begun.step));
    records = false;
  }
  return client->Leave();
}

}  // namespace
}  // namespace nereus

int main() {
  const absl::Status status = nereus::Walk();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  for (size_t i = 0; i < entry_count && i < kEntriesMax; ++i) {
    std::printf("%s %#zx\n", entries[i].in_push ? "push" : "other",
                entries[i].function);
  }
  return entry_count == 0 ? 1 : 0;
}
