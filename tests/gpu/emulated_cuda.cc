// The part of the CUDA runtime that Nereus uses, on the CPU (see
// cuda_emulation.h). Each stream is a thread, so the work of two streams can
// run at the same time, as on a device. Only one kernel runs at a time.
// ThreadSanitizer finds accesses that streams and events do not order. Device
// memory is host memory in a table of allocations.
//
// In this order: streams, events, the threads of a CUDA block, the state of a
// thread, the table of memory, the checks at the begin of a call, the functions
// of the driver, the functions of the runtime.

#include "tests/gpu/emulated_cuda.h"

#include <cuda.h>
#include <ucontext.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/cuda_emulation.h"

// Stream. Does its work in order, on a thread.
struct CUstream_st {
 public:
  const int device;
  // True while the stream is captured for a graph. Work that is added then is
  // dropped.
  std::atomic<bool> is_captured{false};

  explicit CUstream_st(int new_device)
      : device(new_device), thread_([this] { Run(); }) {}
  ~CUstream_st() {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Add(std::function<void()> work) {
    if (is_captured) return;
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
      if (work_.empty()) return;  // All queued work is done.
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

// Event. Each cudaEventRecord makes a new Occasion, so a wait for an earlier
// record does not notice a later record.
struct CUevent_st {
  class Occasion {
   public:
    explicit Occasion(bool reached) : reached_(reached) {}
    void Reach() {
      {
        const std::lock_guard<std::mutex> lock(mu_);
        reached_ = true;
        at_ = std::chrono::steady_clock::now();
      }
      changed_.notify_all();
    }
    void Await() {
      std::unique_lock<std::mutex> lock(mu_);
      changed_.wait(lock, [this] { return reached_; });
    }
    std::chrono::steady_clock::time_point at() {
      const std::lock_guard<std::mutex> lock(mu_);
      return at_;
    }
    bool reached() {
      const std::lock_guard<std::mutex> lock(mu_);
      return reached_;
    }

   private:
    std::mutex mu_;
    std::condition_variable changed_;
    bool reached_;
    std::chrono::steady_clock::time_point at_;
  };

  std::shared_ptr<Occasion> Last() {
    const std::lock_guard<std::mutex> lock(mu);
    return last;
  }

  int device = 0;
  std::mutex mu;
  // An event that was never recorded counts as reached.
  std::shared_ptr<Occasion> last = std::make_shared<Occasion>(true);
};

namespace cuda_emulation {
namespace {

constexpr size_t kStackBytes = 64 * 1024;

// Threads of a CUDA block, each with a stack of its own. They take turns on the
// calling thread.
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

// Held while a kernel runs. Without it, two kernels that run at the same time
// would share their __shared__ variables.
std::mutex running;

constexpr int kDevices = 2;
// An allocation of this many bytes or more fails.
constexpr size_t kMemoryMax = size_t{1} << 36;

// State of the calling thread.
thread_local bool has_context = false;
// Device of the context; without a context, runtime_device.
thread_local int current_device = 0;
thread_local int runtime_device = 0;  // Device of the last cudaSetDevice.
thread_local cudaError_t last_error = cudaSuccess;
thread_local bool in_host_function = false;

std::atomic<bool> contexts[kDevices];
std::atomic<int64_t> calls_until_failure{-1};

// Allocation. Its key in Memory::known is the address of its first byte.
struct Known {
  size_t bytes = 0;
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = 0;
};
struct Memory {
  std::mutex mu;
  std::map<const char*, Known> known;
};
Memory& TheMemory() {
  static Memory& memory = *new Memory();
  return memory;
}

// Returns the allocation that contains all `bytes` bytes at `pointer`. Returns
// Known() if there is none.
Known Find(const void* pointer, size_t bytes) {
  const auto* const byte = static_cast<const char*>(pointer);
  const std::lock_guard<std::mutex> lock(TheMemory().mu);
  auto after = TheMemory().known.upper_bound(byte);
  if (after == TheMemory().known.begin()) return {};
  --after;
  const auto& [begin, known] = *after;
  return byte + bytes <= begin + known.bytes ? known : Known();
}

cudaError_t Result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Begins a call that needs a context. Makes a context for the calling thread if
// the thread has none. Returns an error in a host function of a stream.
cudaError_t Enter() {
  if (in_host_function) return Result(cudaErrorNotPermitted);
  has_context = true;
  contexts[current_device] = true;
  return cudaSuccess;
}

// Begins a call that also fails if a test asked for that (FailCallAfter).
cudaError_t EnterFallible() {
  const cudaError_t entered = Enter();
  if (entered != cudaSuccess) return entered;
  if (calls_until_failure >= 0 && calls_until_failure-- == 0) {
    return Result(cudaErrorUnknown);
  }
  return cudaSuccess;
}

// Capture of graphs, always in the mode "global". During a capture, only
// threads with the mode "relaxed" may make certain calls (EnterUnsafe). A call
// of another thread fails and spoils the capture.
std::atomic<int> captures{0};         // Number of streams that are captured.
std::atomic<bool> is_spoiled{false};  // True if the capture is spoiled.
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Begins a call that only relaxed threads may make during a capture.
cudaError_t EnterUnsafe() {
  if (captures > 0 && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    is_spoiled = true;
    return Result(cudaErrorStreamCaptureUnsupported);
  }
  return EnterFallible();
}

CUresult ExchangeCaptureMode(CUstreamCaptureMode* mode) {
  if (!has_context) return CUDA_ERROR_INVALID_CONTEXT;
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

#define NEREUS_ENTER(how)                                \
  if (const cudaError_t entered = cuda_emulation::how(); \
      entered != cudaSuccess) {                          \
    return entered;                                      \
  }

cudaError_t Allocate(void** pointer, size_t bytes, cudaMemoryType type) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes < kMemoryMax) {
    *pointer = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  }
  if (*pointer == nullptr) return Result(cudaErrorMemoryAllocation);
  // Writes junk, because new memory of a device has undefined content, too.
  std::memset(*pointer, 0xab, bytes);
  const std::lock_guard<std::mutex> lock(TheMemory().mu);
  TheMemory().known[static_cast<const char*>(*pointer)] = {bytes, type,
                                                           current_device};
  return cudaSuccess;
}

cudaError_t Free(void* pointer, cudaMemoryType type) {
  if (pointer == nullptr) return cudaSuccess;
  {
    const std::lock_guard<std::mutex> lock(TheMemory().mu);
    const auto found =
        TheMemory().known.find(static_cast<const char*>(pointer));
    if (found == TheMemory().known.end() || found->second.type != type) {
      return Result(cudaErrorInvalidValue);
    }
    TheMemory().known.erase(found);
  }
  std::free(pointer);
  return cudaSuccess;
}

CUstream_st& StreamOf(cudaStream_t stream) {
  static CUstream_st* const none[kDevices] = {new CUstream_st(0),
                                              new CUstream_st(1)};
  return stream == nullptr ? *none[current_device] : *stream;
}

void Add(cudaStream_t stream, std::function<void()> work) {
  StreamOf(stream).Add(std::move(work));
}

// Functions of the driver's interface. The context of device i is the address
// of contexts[i].
CUresult GetCurrentContext(CUcontext* context) {
  *context = has_context
                 ? reinterpret_cast<CUcontext>(&contexts[current_device])
                 : nullptr;
  return CUDA_SUCCESS;
}
CUresult SetCurrentContext(CUcontext context) {
  has_context = context != nullptr;
  current_device = runtime_device;
  for (int i = 0; i < kDevices; ++i) {
    if (context == reinterpret_cast<CUcontext>(&contexts[i])) {
      current_device = i;
    }
  }
  return CUDA_SUCCESS;
}
CUresult QueryEvent(CUevent event) {
  if (captures > 0 && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    is_spoiled = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return event->Last()->reached() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult Init(unsigned) { return CUDA_SUCCESS; }
CUresult GetDevice(CUdevice* device, int number) {
  *device = number;
  return number < kDevices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult RetainPrimaryContext(CUcontext* context, CUdevice device) {
  contexts[device] = true;
  *context = reinterpret_cast<CUcontext>(&contexts[device]);
  return CUDA_SUCCESS;
}

}  // namespace

void FailCallAfter(int64_t calls) { calls_until_failure = calls; }
bool HasContext(int device) { return contexts[device]; }

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
  NEREUS_ENTER(EnterFallible);
  if (StreamOf(stream).device != current_device) {
    return Result(cudaErrorInvalidResourceHandle);
  }
  Add(stream, std::move(work));
  return cudaSuccess;
}

}  // namespace cuda_emulation

using cuda_emulation::Add;
using cuda_emulation::current_device;
using cuda_emulation::Find;
using cuda_emulation::kDevices;
using cuda_emulation::Known;
using cuda_emulation::Result;
using cuda_emulation::StreamOf;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return Result(cudaErrorInvalidDevice);
  cuda_emulation::runtime_device = device;
  current_device = device;
  NEREUS_ENTER(Enter);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulation");
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* result) {
  const std::map<std::string, void*> functions = {
      {"cuInit", reinterpret_cast<void*>(&cuda_emulation::Init)},
      {"cuDeviceGet", reinterpret_cast<void*>(&cuda_emulation::GetDevice)},
      {"cuDevicePrimaryCtxRetain",
       reinterpret_cast<void*>(&cuda_emulation::RetainPrimaryContext)},
      {"cuCtxGetCurrent",
       reinterpret_cast<void*>(&cuda_emulation::GetCurrentContext)},
      {"cuCtxSetCurrent",
       reinterpret_cast<void*>(&cuda_emulation::SetCurrentContext)},
      {"cuThreadExchangeStreamCaptureMode",
       reinterpret_cast<void*>(&cuda_emulation::ExchangeCaptureMode)},
      {"cuEventQuery", reinterpret_cast<void*>(&cuda_emulation::QueryEvent)}};
  *result = cudaDriverEntryPointSuccess;
  *function = functions.at(name);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return std::exchange(cuda_emulation::last_error, cudaSuccess);
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "emulated error";
}
const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  NEREUS_ENTER(EnterUnsafe);
  return cuda_emulation::Allocate(pointer, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFree(void* pointer) {
  NEREUS_ENTER(EnterUnsafe);
  return cuda_emulation::Free(pointer, cudaMemoryTypeDevice);
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  NEREUS_ENTER(EnterUnsafe);
  return cuda_emulation::Allocate(pointer, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* pointer) {
  NEREUS_ENTER(EnterUnsafe);
  return cuda_emulation::Free(pointer, cudaMemoryTypeHost);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                     const void* pointer) {
  NEREUS_ENTER(EnterFallible);
  *attributes = {};
  const Known known = Find(pointer, 1);
  attributes->type = known.type;
  attributes->device =
      known.type == cudaMemoryTypeUnregistered ? -1 : known.device;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  NEREUS_ENTER(EnterFallible);
  *stream = new CUstream_st(current_device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreateWithFlags(stream, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  NEREUS_ENTER(Enter);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  NEREUS_ENTER(Enter);
  stream->is_captured = true;
  cuda_emulation::is_spoiled = false;
  ++cuda_emulation::captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  NEREUS_ENTER(Enter);
  *graph = nullptr;
  stream->is_captured = false;
  --cuda_emulation::captures;
  return Result(cuda_emulation::is_spoiled ? cudaErrorStreamCaptureInvalidated
                                           : cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  cudaStreamCaptureStatus* status) {
  NEREUS_ENTER(Enter);
  *status = StreamOf(stream).is_captured ? cudaStreamCaptureStatusActive
                                         : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  NEREUS_ENTER(Enter);
  StreamOf(stream).AwaitIdle();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  NEREUS_ENTER(EnterFallible);
  *event = new CUevent_st();
  (*event)->device = current_device;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  NEREUS_ENTER(Enter);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  NEREUS_ENTER(EnterFallible);
  if (event->device != StreamOf(stream).device) {
    return Result(cudaErrorInvalidResourceHandle);
  }
  const auto occasion = std::make_shared<CUevent_st::Occasion>(false);
  {
    const std::lock_guard<std::mutex> lock(event->mu);
    event->last = occasion;
  }
  Add(stream, [occasion] { occasion->Reach(); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  NEREUS_ENTER(EnterUnsafe);
  return Result(event->Last()->reached() ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  NEREUS_ENTER(Enter);
  event->Last()->Await();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin,
                                 cudaEvent_t end) {
  NEREUS_ENTER(Enter);
  *milliseconds = std::chrono::duration<float, std::milli>(end->Last()->at() -
                                                           begin->Last()->at())
                      .count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned) {
  NEREUS_ENTER(EnterFallible);
  Add(stream, [occasion = event->Last()] { occasion->Await(); });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                               void* data) {
  NEREUS_ENTER(EnterFallible);
  Add(stream, [function, data] {
    cuda_emulation::in_host_function = true;
    function(data);
    cuda_emulation::in_host_function = false;
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  NEREUS_ENTER(EnterFallible);
  const bool from_device = Find(source, bytes).type == cudaMemoryTypeDevice;
  const bool to_device = Find(destination, bytes).type == cudaMemoryTypeDevice;
  const bool sensible = bytes == 0 || kind == cudaMemcpyDefault ||
                        (from_device == (kind == cudaMemcpyDeviceToHost ||
                                         kind == cudaMemcpyDeviceToDevice) &&
                         to_device == (kind == cudaMemcpyHostToDevice ||
                                       kind == cudaMemcpyDeviceToDevice));
  if (!sensible) return Result(cudaErrorInvalidValue);
  Add(stream, [=] {
    if (bytes > 0) std::memcpy(destination, source, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* destination, size_t destination_pitch,
                              const void* source, size_t source_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  NEREUS_ENTER(EnterFallible);
  const size_t last = height - 1;
  const bool sensible =
      kind == cudaMemcpyDefault && destination_pitch >= width &&
      source_pitch >= width && height > 0 &&
      Find(source, last * source_pitch + width).type == cudaMemoryTypeDevice;
  if (!sensible) return Result(cudaErrorInvalidValue);
  Add(stream, [=] {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<uint8_t*>(destination) + row * destination_pitch,
                  static_cast<const uint8_t*>(source) + row * source_pitch,
                  width);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* destination, int value, size_t bytes,
                            cudaStream_t stream) {
  NEREUS_ENTER(EnterFallible);
  Add(stream, [=] {
    if (bytes > 0) std::memset(destination, value, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* destination, const void* source, size_t bytes,
                       cudaMemcpyKind kind) {
  const cudaError_t error =
      cudaMemcpyAsync(destination, source, bytes, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

}  // extern "C"
