#include "common/device/stager.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"
#include "common/device/driver_calls.h"

namespace nereus {
namespace {

// True if all work before `event` in its stream is done. Asks the driver and
// not the CUDA runtime: the runtime would store "not ready" as the thread's
// last error, in the place of an error that the program's own code has not read
// yet. REQUIRES: the calling thread is in a DeviceScope.
bool IsReached(cudaEvent_t event) {
  return Driver()->query_event(event) == CUDA_SUCCESS;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stager>> Stager::Create(int device) {
  const std::string what = absl::StrCat("GPU ", device);
  NEREUS_TRY(CheckDevice(device));
  auto stager = std::unique_ptr<Stager>(new Stager(device));
  const DeviceScope scope(device, what);
  NEREUS_TRY(scope.status());
  for (cudaStream_t* stream :
       {&stager->out_, &stager->in_, &stager->side_stream_}) {
    *stream = NEREUS_TRY(MakeStream(what));
  }
  return stager;
}

absl::StatusOr<cudaStream_t> Stager::MakeStream(absl::string_view what) {
  int least = 0;
  int greatest = 0;
  NEREUS_TRY(CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                        what, "cudaDeviceGetStreamPriorityRange"));
  // A non-blocking stream does not wait for the default stream, which the
  // program's own code may use. Without the priority, the stream's kernels
  // would wait for the kernels of the backward pass, which fill the GPU.
  cudaStream_t stream = nullptr;
  NEREUS_TRY(CudaStatus(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
      what, "cudaStreamCreateWithPriority"));
  return stream;
}

void Stager::Drain() {
  const DeviceScope scope(device_, "staging");
  for (const cudaStream_t stream : {out_, in_, side_stream_}) {
    if (stream == nullptr) continue;
    const absl::Status status = CudaStatus(cudaStreamSynchronize(stream),
                                           "staging", "cudaStreamSynchronize");
    if (!status.ok()) NEREUS_LOG(Error) << status.message();
  }
}

Stager::~Stager() {
  Drain();
  const DeviceScope scope(device_, "staging");
  for (const cudaStream_t stream : {out_, in_, side_stream_}) {
    if (stream == nullptr) continue;
    const absl::Status status =
        CudaStatus(cudaStreamDestroy(stream), "staging", "cudaStreamDestroy");
    if (!status.ok()) NEREUS_LOG(Error) << status.message();
  }
  std::deque<Incoming> dropped;
  {
    MutexLock lock(&mu_);
    dropped.swap(incoming_);
  }
  // Destroys the Points without the lock, because GiveEventBack takes it.
  dropped.clear();
  MutexLock lock(&mu_);
  for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
}

absl::Status Stager::CheckNotCaptured(absl::string_view what,
                                      cudaStream_t stream) const {
  const DeviceScope scope(device_, what);
  NEREUS_TRY(scope.status());
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  NEREUS_TRY(CudaStatus(cudaStreamIsCapturing(stream, &status), what,
                        "cudaStreamIsCapturing"));
  if (status == cudaStreamCaptureStatusNone) return absl::OkStatus();
  return FailedPreconditionError(
      what,
      ": the stream is being captured for a CUDA graph, and a graph "
      "cannot hold this call: make the call outside of the capture");
}

bool Stager::IsOnDevice(const void* pointer) const {
  const DeviceScope scope(device_, "staging");
  cudaPointerAttributes attributes = {};
  return scope.status().ok() &&
         CudaStatus(cudaPointerGetAttributes(&attributes, pointer), "staging",
                    "cudaPointerGetAttributes")
             .ok() &&
         (attributes.type == cudaMemoryTypeDevice ||
          attributes.type == cudaMemoryTypeManaged);
}

absl::Status Stager::CheckPointer(absl::string_view what,
                                  const void* pointer) const {
  if (pointer == nullptr) return InvalidArgumentError(what, " is null");
  const DeviceScope scope(device_, what);
  NEREUS_TRY(scope.status());
  cudaPointerAttributes attributes = {};
  NEREUS_TRY(CudaStatus(cudaPointerGetAttributes(&attributes, pointer), what,
                        "cudaPointerGetAttributes"));
  const bool on_device = attributes.type == cudaMemoryTypeDevice ||
                         attributes.type == cudaMemoryTypeManaged;
  if (!on_device) {
    return InvalidArgumentError(what, ": ",
                                absl::Hex(reinterpret_cast<uintptr_t>(pointer)),
                                " is not memory of a GPU, or was freed");
  }
  if (attributes.device != device_) {
    return InvalidArgumentError(what, " is on GPU ", attributes.device,
                                ", this client uses GPU ", device_);
  }
  if (reinterpret_cast<uintptr_t>(pointer) % alignof(float) != 0) {
    return InvalidArgumentError(what, ": ",
                                absl::Hex(reinterpret_cast<uintptr_t>(pointer)),
                                " is not aligned to 4 bytes");
  }
  return absl::OkStatus();
}

absl::StatusOr<Stager::Point> Stager::TakePoint(absl::string_view what) {
  {
    MutexLock lock(&mu_);
    if (!events_.empty()) {
      // Reuses an event, because making one takes longer.
      const cudaEvent_t event = events_.back();
      events_.pop_back();
      return Own(event);
    }
  }
  const DeviceScope scope(device_, what);
  NEREUS_TRY(scope.status());
  // With cudaEventBlockingSync, a thread that waits for the event sleeps and
  // does not spin.
  cudaEvent_t event = nullptr;
  NEREUS_TRY(
      CudaStatus(cudaEventCreateWithFlags(
                     &event, cudaEventDisableTiming | cudaEventBlockingSync),
                 what, "cudaEventCreateWithFlags"));
  return Own(event);
}

Stager::Point Stager::Own(cudaEvent_t event) {
  return Point(std::shared_ptr<CUevent_st>(
      event, [this](cudaEvent_t given_back) { GiveEventBack(given_back); }));
}

void Stager::GiveEventBack(cudaEvent_t event) {
  MutexLock lock(&mu_);
  events_.push_back(event);
}

absl::StatusOr<Stager::Point> Stager::Mark(absl::string_view what,
                                           cudaStream_t stream) {
  const DeviceScope scope(device_, what);
  NEREUS_TRY(scope.status());
  Point point = NEREUS_TRY(TakePoint(what));
  NEREUS_TRY(CudaStatus(cudaEventRecord(point.event_.get(), stream), what,
                        "cudaEventRecord"));
  return point;
}

absl::Status Stager::Follow(absl::string_view what, cudaStream_t stream,
                            const Point& point) const {
  if (point.event_ == nullptr) return absl::OkStatus();
  const DeviceScope scope(device_, what);
  NEREUS_TRY(scope.status());
  // The stream waits for the place that the event marks now, even if a later
  // Point reuses the event.
  return CudaStatus(cudaStreamWaitEvent(stream, point.event_.get(), 0), what,
                    "cudaStreamWaitEvent");
}

absl::Status Stager::Await(absl::string_view what, const Point& point) const {
  if (point.event_ == nullptr) return absl::OkStatus();
  const DeviceScope scope(device_, what);
  NEREUS_TRY(scope.status());
  return CudaStatus(cudaEventSynchronize(point.event_.get()), what,
                    "cudaEventSynchronize");
}

absl::StatusOr<std::shared_ptr<Stager::Outgoing>> Stager::CopyOut(
    absl::string_view what, const void* source, Buffer values,
    const Point& after, cudaStream_t stream) {
  ReleaseRead();
  const DeviceScope scope(device_, what);
  NEREUS_TRY(scope.status());
  if (values.bytes() > 0) NEREUS_TRY(CheckPointer(what, source));
  auto outgoing = std::shared_ptr<Outgoing>(
      new Outgoing(device_, std::string(what), std::move(values)));
  NEREUS_TRY(Follow(what, stream, after));
  const absl::Status queued = QueuePieces(source, stream, *outgoing);
  if (!queued.ok()) {
    // Waits, because queued copies may still write to `values`, which is freed
    // when this function returns.
    (void)cudaStreamSynchronize(stream);
    return queued;
  }
  return outgoing;
}

absl::StatusOr<std::shared_ptr<Stager::Outgoing>> Stager::CopyRunsOut(
    absl::string_view what, const void* source, int64_t run_bytes,
    int64_t stride_bytes, int64_t runs, Buffer values, const Point& after,
    cudaStream_t stream) {
  NEREUS_CHECK(runs > 0 && run_bytes > 0 && values.bytes() == runs * run_bytes)
      << runs << " runs of " << run_bytes << " bytes, " << values.bytes();
  const DeviceScope scope(device_, what);
  NEREUS_TRY(scope.status());
  NEREUS_TRY(CheckPointer(what, source));
  auto outgoing = std::shared_ptr<Outgoing>(
      new Outgoing(device_, std::string(what), std::move(values)));
  NEREUS_TRY(Follow(what, stream, after));
  const Buffer& to = outgoing->values();
  const auto width = static_cast<size_t>(run_bytes);
  absl::Status queued = CudaStatus(
      cudaMemcpy2DAsync(to.data(), width, source,
                        static_cast<size_t>(stride_bytes), width,
                        static_cast<size_t>(runs), cudaMemcpyDefault, stream),
      what, "cudaMemcpy2DAsync", to.bytes());
  absl::StatusOr<Point> end = Mark(what, stream);
  queued.Update(end.status());
  if (!queued.ok()) {
    // Waits, as CopyOut does.
    (void)cudaStreamSynchronize(stream);
    return queued;
  }
  outgoing->pieces_.push_back(*std::move(end));
  return outgoing;
}

absl::Status Stager::QueuePieces(const void* source, cudaStream_t stream,
                                 Outgoing& outgoing) {
  const Buffer& values = outgoing.values();
  const auto* const from = static_cast<const uint8_t*>(source);
  for (int64_t start = 0; start < values.bytes(); start += kPieceBytes) {
    const int64_t bytes = std::min(kPieceBytes, values.bytes() - start);
    NEREUS_TRY(CopyAsync(outgoing.what_, values.data() + start, from + start,
                         bytes, stream));
    Point piece = NEREUS_TRY(Mark(outgoing.what_, stream));
    outgoing.pieces_.push_back(std::move(piece));
    bytes_out_ += bytes;
  }
  return absl::OkStatus();
}

Stager::Outgoing::~Outgoing() {
  // Waits for the copy, because other code may reuse the memory afterwards.
  const absl::Status status = Await(values_.bytes());
  if (!status.ok()) NEREUS_LOG(Error) << status.message();
}

cudaEvent_t Stager::Outgoing::EventOf(int64_t bytes) const {
  NEREUS_CHECK(bytes <= values_.bytes()) << bytes;
  const auto piece = static_cast<size_t>((bytes - 1) / kPieceBytes);
  // After an error of QueuePieces, pieces_ lacks some parts. CopyOut has then
  // waited for all copies that were queued, so the last event will do.
  return pieces_[std::min(piece, pieces_.size() - 1)].event_.get();
}

bool Stager::Outgoing::IsThere(int64_t bytes) {
  if (bytes <= 0 || pieces_.empty()) return true;
  const DeviceScope scope(device_, what_);
  if (!scope.status().ok()) return false;  // Await returns the error.
  return IsReached(EventOf(bytes));
}

absl::Status Stager::Outgoing::Await(int64_t bytes) {
  if (bytes <= 0 || pieces_.empty()) return absl::OkStatus();
  const DeviceScope scope(device_, what_);
  NEREUS_TRY(scope.status());
  return CudaStatus(cudaEventSynchronize(EventOf(bytes)), what_,
                    "cudaEventSynchronize");
}

absl::Status Stager::QueueParts(absl::string_view what, const Buffer& values,
                                absl::Span<const ValueRange> parts,
                                float* destination) {
  for (const ValueRange& part : parts) {
    const int64_t bytes =
        (part.end - part.begin) * static_cast<int64_t>(sizeof(float));
    NEREUS_TRY(CopyAsync(what, destination + part.begin,
                         values.floats() + part.begin, bytes, in_));
    bytes_in_ += bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<Stager::Point> Stager::CopyIn(absl::string_view what,
                                             const Buffer& values,
                                             absl::Span<const ValueRange> parts,
                                             float* destination,
                                             const Point& after) {
  ReleaseRead();
  if (values.bytes() == 0) return Point();
  const DeviceScope scope(device_, what);
  NEREUS_TRY(scope.status());
  NEREUS_TRY(CheckPointer(what, destination));
  // Keeps incoming_ in the order of the stream. ReleaseRead relies on this: it
  // stops at the first copy that has not ended.
  MutexLock in_order(&in_order_);
  NEREUS_TRY(Follow(what, in_, after));
  absl::Status status = QueueParts(what, values, parts, destination);
  absl::StatusOr<Point> there = Mark(what, in_);
  status.Update(there.status());
  if (!status.ok()) {
    // Waits, because queued copies may still read `values`, which the caller
    // may free after this.
    (void)cudaStreamSynchronize(in_);
    return status;
  }
  MutexLock lock(&mu_);
  incoming_.push_back({values, *there});
  return there;
}

absl::StatusOr<Stager::Point> Stager::CopyIn(absl::string_view what,
                                             const Buffer& values,
                                             float* destination,
                                             const Point& after) {
  return CopyIn(what, values, {{0, values.float_count()}}, destination, after);
}

void Stager::ReleaseRead() {
  const DeviceScope scope(device_, "staging");
  // Destroyed after the lock is released: the destructors of the Points take
  // the lock.
  std::vector<Incoming> dropped;
  {
    MutexLock lock(&mu_);
    while (!incoming_.empty() &&
           IsReached(incoming_.front().there.event_.get())) {
      dropped.push_back(std::move(incoming_.front()));
      incoming_.pop_front();
    }
  }
}

}  // namespace nereus
