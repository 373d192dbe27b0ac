// The part of the CUDA runtime that Nereus uses, on the CPU (cuda_emulation.h):
// every stream is a thread, so that what a real device may run at the same time
// runs at the same time here, and ThreadSanitizer sees what is not ordered by
// streams and events. Device memory is host memory that is known.

#include <ucontext.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "tests/gpu/cuda_emulation.h"

// A stream: work in order, on a thread.
struct CUstream_st {
 public:
  CUstream_st() : thread_([this] { Run(); }) {}
  ~CUstream_st() {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Add(std::function<void()> work) {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      work_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  void AwaitIdle() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return work_.empty() && !busy_; });
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mu_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
      if (work_.empty()) return;  // All is done that was queued.
      busy_ = true;
      const std::function<void()> next = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      next();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

// An event. Each time it is recorded is an occasion of its own: whoever waits
// for one does not notice that it is recorded again, elsewhere.
struct CUevent_st {
  class Occasion {
   public:
    explicit Occasion(bool reached) : reached_(reached) {}
    void Reach() {
      {
        const std::lock_guard<std::mutex> lock(mu_);
        reached_ = true;
      }
      changed_.notify_all();
    }
    void Await() {
      std::unique_lock<std::mutex> lock(mu_);
      changed_.wait(lock, [this] { return reached_; });
    }
    bool reached() {
      const std::lock_guard<std::mutex> lock(mu_);
      return reached_;
    }

   private:
    std::mutex mu_;
    std::condition_variable changed_;
    bool reached_;
  };

  std::shared_ptr<Occasion> Last() {
    const std::lock_guard<std::mutex> lock(mu);
    return last;
  }

  std::mutex mu;
  // One that was never recorded holds nobody up.
  std::shared_ptr<Occasion> last = std::make_shared<Occasion>(true);
};

namespace cuda_emulation {
namespace {

constexpr size_t kStackBytes = 64 * 1024;

// The threads of a block, each with a stack of its own.
class Fibers {
 public:
  void Run(int threads, const std::function<void()>& body) {
    body_ = &body;
    while (static_cast<int>(fibers_.size()) < threads) {
      fibers_.push_back(std::make_unique<Fiber>());
    }
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = *fibers_[i];
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = &scheduler_;
      makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Fibers::Enter),
                  0);
      fiber.running = true;
    }
    current_fibers = this;
    int left = threads;
    while (left > 0) {
      for (int i = 0; i < threads; ++i) {
        if (!fibers_[i]->running) continue;
        thread_index.x = static_cast<unsigned>(i);
        current_ = i;
        swapcontext(&scheduler_, &fibers_[i]->context);
        if (!fibers_[i]->running) --left;
      }
    }
  }
  void Yield() { swapcontext(&fibers_[current_]->context, &scheduler_); }

  static thread_local Fibers* current_fibers;

 private:
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
    bool running = false;
  };

  static void Enter() {
    Fibers& self = *current_fibers;
    (*self.body_)();
    self.fibers_[self.current_]->running = false;
  }

  ucontext_t scheduler_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  const std::function<void()>* body_ = nullptr;
  int current_ = 0;
};
thread_local Fibers* Fibers::current_fibers = nullptr;

// Kernels of two streams would share what is __shared__.
std::mutex running;

// What was allocated, by its begin.
struct Memory {
  std::mutex mu;
  std::map<const char*, std::pair<size_t, cudaMemoryType>> known;
};
Memory& TheMemory() {
  static Memory& memory = *new Memory();
  return memory;
}

cudaError_t Allocate(void** pointer, size_t bytes, cudaMemoryType type) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (*pointer == nullptr) return cudaErrorMemoryAllocation;
  // As on a device, nobody may count on what is in it.
  std::memset(*pointer, 0xab, bytes);
  const std::lock_guard<std::mutex> lock(TheMemory().mu);
  TheMemory().known[static_cast<const char*>(*pointer)] = {bytes, type};
  return cudaSuccess;
}

cudaError_t Free(void* pointer, cudaMemoryType type) {
  if (pointer == nullptr) return cudaSuccess;
  {
    const std::lock_guard<std::mutex> lock(TheMemory().mu);
    const auto found =
        TheMemory().known.find(static_cast<const char*>(pointer));
    if (found == TheMemory().known.end() || found->second.second != type) {
      return cudaErrorInvalidValue;
    }
    TheMemory().known.erase(found);
  }
  std::free(pointer);
  return cudaSuccess;
}

CUstream_st& StreamOf(cudaStream_t stream) {
  static CUstream_st& none = *new CUstream_st();
  return stream == nullptr ? none : *stream;
}

}  // namespace

void AwaitBlock() { Fibers::current_fibers->Yield(); }

void RunBlocks(int64_t blocks, int threads, const std::function<void()>& body) {
  static thread_local Fibers fibers;
  const std::lock_guard<std::mutex> lock(running);
  for (int64_t block = 0; block < blocks; ++block) {
    block_index.x = static_cast<unsigned>(block);
    fibers.Run(threads, body);
  }
}

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work) {
  StreamOf(stream).Add(std::move(work));
  return cudaSuccess;
}

}  // namespace cuda_emulation

using cuda_emulation::Enqueue;
using cuda_emulation::StreamOf;
using cuda_emulation::TheMemory;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulation");
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "emulated error";
}
const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return cuda_emulation::Allocate(pointer, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFree(void* pointer) {
  return cuda_emulation::Free(pointer, cudaMemoryTypeDevice);
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return cuda_emulation::Allocate(pointer, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* pointer) {
  return cuda_emulation::Free(pointer, cudaMemoryTypeHost);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                     const void* pointer) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = -1;
  const auto* const byte = static_cast<const char*>(pointer);
  const std::lock_guard<std::mutex> lock(TheMemory().mu);
  auto after = TheMemory().known.upper_bound(byte);
  if (after == TheMemory().known.begin()) return cudaSuccess;
  --after;
  const auto& [begin, memory] = *after;
  if (byte >= begin + memory.first) return cudaSuccess;
  attributes->type = memory.second;
  attributes->device = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreateWithFlags(stream, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  StreamOf(stream).AwaitIdle();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto occasion = std::make_shared<CUevent_st::Occasion>(false);
  {
    const std::lock_guard<std::mutex> lock(event->mu);
    event->last = occasion;
  }
  return Enqueue(stream, [occasion] { occasion->Reach(); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event->Last()->reached() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  event->Last()->Await();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned) {
  return Enqueue(stream, [occasion = event->Last()] { occasion->Await(); });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                               void* data) {
  return Enqueue(stream, [function, data] { function(data); });
}

cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes,
                            cudaMemcpyKind, cudaStream_t stream) {
  return Enqueue(stream, [=] { std::memcpy(destination, source, bytes); });
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) {
  return cudaMalloc(pointer, bytes);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return Enqueue(stream, [pointer] { (void)cudaFree(pointer); });
}
cudaError_t cudaMemsetAsync(void* destination, int value, size_t bytes,
                            cudaStream_t stream) {
  return Enqueue(stream, [=] { std::memset(destination, value, bytes); });
}
cudaError_t cudaMemcpy(void* destination, const void* source, size_t bytes,
                       cudaMemcpyKind kind) {
  cudaMemcpyAsync(destination, source, bytes, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}

}  // extern "C"
