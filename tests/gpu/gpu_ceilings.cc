// gpu_ceilings: measures the limits of a machine with a GPU, without Nereus:
//
//   tests/gpu/gpu_ceilings [--bytes=N]
//
// Prints a line about the GPU, then one JSON object per line, {"name", "value",
// "unit"}: the rate of pinning; the rates of copies by the size of their
// pieces, both ways at once, from and to pageable memory, and on the GPU; the
// time to queue a small task and wait for it; the times of calls while a stream
// is busy; the error of cudaPointerGetAttributes for a null pointer. Each call
// that is timed on a busy stream should return at once.
//
// tests/gpu/first_run.sh compares the values with thresholds, by their names.
// Copies have N bytes at most, 256 MiB by default, which is more than the
// caches of any GPU hold. Without a GPU it says so and exits with 0.
//
// Below: helpers; one function for each group of output lines; main.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/device_array.h"

namespace nereus {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr int kRepeats = 5;
constexpr int kSmallTasks = 51;  // Number of small tasks that are timed.
// Time that the GPU is kept busy while a call is timed.
constexpr double kBusySeconds = 0.05;
// Largest number of copies that are queued on a stopped stream. A stream holds
// about a thousand units of work. A call that adds more waits for the stream,
// so CopySeconds would wait forever for the stream that it has stopped.
constexpr size_t kQueuedMax = 256;

void Print(const std::string& name, double value, const char* unit) {
  std::printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n",
              name.c_str(), value, unit);
  std::fflush(stdout);  // A later call may hang.
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Returns the seconds that `work` takes on this thread.
double SecondsOf(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

class Stream {
 public:
  Stream() {
    NEREUS_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~Stream() { NEREUS_CUDA(cudaStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void Await() const { NEREUS_CUDA(cudaStreamSynchronize(stream_)); }
  void Copy(void* to, const void* from, size_t bytes) const {
    NEREUS_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags) {
    NEREUS_CUDA(cudaEventCreateWithFlags(&event_, flags));
  }
  ~Event() { NEREUS_CUDA(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }
  void Record(const Stream& stream) const {
    NEREUS_CUDA(cudaEventRecord(event_, stream.get()));
  }
  void Await() const { NEREUS_CUDA(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Two arrays in memory of the GPU, and two in pinned memory of the host.
struct Memory {
  explicit Memory(size_t new_bytes) : bytes(new_bytes) {
    for (unsigned char*& array : device) {
      NEREUS_CUDA(cudaMalloc(reinterpret_cast<void**>(&array), bytes));
      NEREUS_CUDA(cudaMemsetAsync(array, 1, bytes, nullptr));
    }
    NEREUS_CUDA(cudaStreamSynchronize(nullptr));
    // The call pins all pages, so its time is the time of pinning.
    pin_seconds = SecondsOf([&] {
      for (unsigned char*& array : pinned) {
        NEREUS_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&array), bytes,
                                  cudaHostAllocPortable));
      }
    });
    for (unsigned char* array : pinned) std::memset(array, 2, bytes);
  }
  ~Memory() {
    for (unsigned char* array : device) NEREUS_CUDA(cudaFree(array));
    for (unsigned char* array : pinned) NEREUS_CUDA(cudaFreeHost(array));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const size_t bytes;  // Bytes of each array.
  unsigned char* device[2] = {};
  unsigned char* pinned[2] = {};
  double pin_seconds = 0;  // Time to pin both arrays.
};

// Host function that stops a stream until the flag is set.
void AwaitFlag(void* flag) {
  static_cast<std::atomic<bool>*>(flag)->wait(false);
}

// Returns the seconds of a copy in pieces, by the GPU's clock: the median of
// kRepeats copies. All pieces are queued before the first one begins.
double CopySeconds(const Stream& stream, unsigned char* to,
                   const unsigned char* from, size_t bytes, size_t piece) {
  const Event begin(cudaEventDefault);
  const Event end(cudaEventDefault);
  std::vector<double> seconds;
  for (int i = 0; i < kRepeats; ++i) {
    std::atomic<bool> open = false;
    NEREUS_CUDA(cudaLaunchHostFunc(stream.get(), &AwaitFlag, &open));
    begin.Record(stream);
    for (size_t at = 0; at < bytes; at += piece) {
      stream.Copy(to + at, from + at, std::min(piece, bytes - at));
    }
    end.Record(stream);
    open = true;
    open.notify_all();
    end.Await();
    float milliseconds = 0;
    NEREUS_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    seconds.push_back(milliseconds / 1e3);
  }
  return Median(seconds);
}

void PrintPieces(const Memory& memory) {
  const struct {
    const char* name;
    size_t bytes;
  } pieces[] = {{"pieces of 256 KiB", kMiB / 4},
                {"pieces of 1 MiB", kMiB},
                {"pieces of 4 MiB", 4 * kMiB},
                {"whole", memory.bytes}};
  const Stream stream;
  for (const auto& piece : pieces) {
    const size_t bytes = std::min(memory.bytes, kQueuedMax * piece.bytes);
    const auto rate = [&](unsigned char* to, const unsigned char* from) {
      return static_cast<double>(bytes) / 1e9 /
             CopySeconds(stream, to, from, bytes, piece.bytes);
    };
    Print(std::string("copy to the host, ") + piece.name,
          rate(memory.pinned[0], memory.device[0]), "GB/s");
    Print(std::string("copy to the GPU, ") + piece.name,
          rate(memory.device[0], memory.pinned[0]), "GB/s");
  }
}

void PrintBothWays(const Memory& memory) {
  constexpr int kCopies = 8;
  const Stream out;
  const Stream in;
  const double seconds = SecondsOf([&] {
    for (int i = 0; i < kCopies; ++i) {
      out.Copy(memory.pinned[0], memory.device[0], memory.bytes);
      in.Copy(memory.device[1], memory.pinned[1], memory.bytes);
    }
    out.Await();
    in.Await();
  });
  Print("copies both ways at once",
        2.0 * kCopies * static_cast<double>(memory.bytes) / 1e9 / seconds,
        "GB/s");
}

void PrintPageable(const Memory& memory) {
  std::vector<unsigned char> pageable(memory.bytes, 3);
  const auto rate = [&](void* to, const void* from, cudaMemcpyKind kind) {
    std::vector<double> seconds;
    for (int i = 0; i < 3; ++i) {
      seconds.push_back(SecondsOf(
          [&] { NEREUS_CUDA(cudaMemcpy(to, from, memory.bytes, kind)); }));
    }
    return static_cast<double>(memory.bytes) / 1e9 / Median(seconds);
  };
  Print("copy to the host, pageable",
        rate(pageable.data(), memory.device[0], cudaMemcpyDeviceToHost),
        "GB/s");
  Print("copy to the GPU, pageable",
        rate(memory.device[0], pageable.data(), cudaMemcpyHostToDevice),
        "GB/s");
}

// Prints the rate of a copy on the GPU. Returns the seconds of the copy.
double PrintDeviceCopy(const Memory& memory) {
  const Stream stream;
  const double seconds = CopySeconds(stream, memory.device[1], memory.device[0],
                                     memory.bytes, memory.bytes);
  // The GPU reads each byte and writes it.
  Print("copy on the GPU",
        2.0 * static_cast<double>(memory.bytes) / 1e9 / seconds, "GB/s");
  return seconds;
}

// Prints the time to queue a small task and wait for it.
void PrintSmallTasks(const Memory& memory) {
  const Stream stream;
  const struct {
    const char* name;
    unsigned flags;
  } kinds[] = {
      {"small task and wait, blocking event", cudaEventBlockingSync},
      {"small task and wait, spinning event", cudaEventDefault},
  };
  for (const auto& [name, flags] : kinds) {
    const Event event(flags | cudaEventDisableTiming);
    std::vector<double> seconds;
    for (int i = 0; i < kSmallTasks; ++i) {
      seconds.push_back(SecondsOf([&] {
        NEREUS_CUDA(cudaMemsetAsync(memory.device[0], 4, 4096, stream.get()));
        event.Record(stream);
        event.Await();
      }));
    }
    Print(name, 1e6 * Median(seconds), "us");
  }
}

// Prints the time that each call of `calls` takes while a stream is busy for
// about kBusySeconds. A call that takes about as long has waited for the
// stream. The pageable copies are queued on this stream; the other calls name
// no stream.
void PrintWaits(const Memory& memory, double copy_seconds) {
  const Stream stream;
  const std::vector<unsigned char> pageable(840'000, 5);
  void* host = nullptr;
  void* device = nullptr;
  const auto copies = std::clamp<size_t>(
      static_cast<size_t>(kBusySeconds / copy_seconds), 1, 2 * kQueuedMax);
  Print("expected busy time", 1e3 * static_cast<double>(copies) * copy_seconds,
        "ms");
  const struct {
    const char* name;
    std::function<void()> call;
  } calls[] = {
      {"pageable copy of 840 KB",
       [&] { stream.Copy(memory.device[0], pageable.data(), 840'000); }},
      {"pageable copy of 32 KB",
       [&] { stream.Copy(memory.device[0], pageable.data(), 32'768); }},
      {"cudaHostAlloc",
       [&] {
         NEREUS_CUDA(cudaHostAlloc(&host, 4 * kMiB, cudaHostAllocPortable));
       }},
      {"cudaFreeHost", [&] { NEREUS_CUDA(cudaFreeHost(host)); }},
      {"cudaMalloc", [&] { NEREUS_CUDA(cudaMalloc(&device, 64 * kMiB)); }},
      {"cudaFree", [&] { NEREUS_CUDA(cudaFree(device)); }},
  };
  for (const auto& [name, call] : calls) {
    stream.Await();
    for (size_t i = 0; i < copies; ++i) {
      stream.Copy(memory.device[1], memory.device[0], memory.bytes);
    }
    Print(std::string("while a stream is busy, ") + name, 1e3 * SecondsOf(call),
          "ms");
  }
  stream.Await();
}

void Run(size_t bytes) {
  cudaDeviceProp properties = {};
  NEREUS_CUDA(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d multiprocessors, %.0f MB of memory, %.1f MB of L2\n",
              properties.name, properties.multiProcessorCount,
              static_cast<double>(properties.totalGlobalMem) / 1e6,
              static_cast<double>(properties.l2CacheSize) / 1e6);
  const Memory memory(bytes);
  Print("pinning", 2 * static_cast<double>(bytes) / 1e9 / memory.pin_seconds,
        "GB/s");
  PrintPieces(memory);
  PrintBothWays(memory);
  PrintPageable(memory);
  const double copy_seconds = PrintDeviceCopy(memory);
  PrintSmallTasks(memory);
  PrintWaits(memory, copy_seconds);
  cudaPointerAttributes attributes = {};
  Print("error of cudaPointerGetAttributes(NULL)",
        cudaPointerGetAttributes(&attributes, nullptr), "");
  cudaGetLastError();
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) {
  size_t bytes = 256 * nereus::kMiB;
  constexpr char kFlag[] = "--bytes=";
  if (argc == 2 && std::strncmp(argv[1], kFlag, std::strlen(kFlag)) == 0) {
    bytes = std::strtoull(argv[1] + std::strlen(kFlag), nullptr, 10);
  } else if (argc > 1) {
    bytes = 0;
  }
  if (bytes < nereus::kMiB) {  // PrintWaits copies 840,000 bytes.
    std::fprintf(stderr, "usage: gpu_ceilings [--bytes=N], N >= 1048576\n");
    return 2;
  }
  const char* const why = nereus::WhyNoGpu();
  if (why != nullptr) {
    std::printf("SKIPPED gpu_ceilings: no GPU: %s\n", why);
    return 0;
  }
  nereus::Run(bytes);
  return 0;
}
