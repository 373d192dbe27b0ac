#include "common/device/stager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

}  // namespace

absl::StatusOr<std::unique_ptr<Stager>> Stager::Create(
    int device, std::shared_ptr<PinnedPool> pool) {
  const std::string what = absl::StrCat("GPU ", device);
  int count = 0;
  NEREUS_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceCount(&count), what, "cudaGetDeviceCount"));
  if (device < 0 || device >= count) {
    return absl::UnavailableError(
        absl::StrCat(what, ": there are ", count, " GPUs, from 0 on"));
  }
  auto stager = std::unique_ptr<Stager>(new Stager(device, std::move(pool)));
  const DeviceScope scope(device, what);
  NEREUS_RETURN_IF_ERROR(scope.status());
  for (cudaStream_t* stream :
       {&stager->out_, &stager->in_, &stager->dropping_}) {
    // Not ordered with the default stream.
    NEREUS_RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking),
                   what, "cudaStreamCreateWithFlags"));
  }
  return stager;
}

Stager::~Stager() {
  for (const cudaStream_t stream : {out_, in_, dropping_}) {
    if (stream == nullptr) continue;
    absl::Status status = CudaStatus(cudaStreamSynchronize(stream), "staging",
                                     "cudaStreamSynchronize");
    status.Update(
        CudaStatus(cudaStreamDestroy(stream), "staging", "cudaStreamDestroy"));
    if (!status.ok()) NEREUS_LOG(Error) << status.message();
  }
  // If the device has failed, Drop was not called for all.
  MutexLock lock(&mu_);
  incoming_.clear();
  for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
}

absl::Status Stager::CheckPointer(absl::string_view what,
                                  const void* pointer) const {
  cudaPointerAttributes attributes = {};
  NEREUS_RETURN_IF_ERROR(
      CudaStatus(cudaPointerGetAttributes(&attributes, pointer), what,
                 "cudaPointerGetAttributes"));
  const bool on_device = attributes.type == cudaMemoryTypeDevice ||
                         attributes.type == cudaMemoryTypeManaged;
  if (!on_device) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": ", absl::Hex(reinterpret_cast<uintptr_t>(pointer)),
        " is not memory of a GPU, or not any more"));
  }
  if (attributes.device != device_) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is on GPU ", attributes.device,
                     ", this client uses GPU ", device_));
  }
  if (reinterpret_cast<uintptr_t>(pointer) % alignof(float) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": ", absl::Hex(reinterpret_cast<uintptr_t>(pointer)),
        " is not aligned to 4 bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<cudaEvent_t> Stager::TakeEvent(absl::string_view what) {
  {
    MutexLock lock(&mu_);
    if (!events_.empty()) {
      const cudaEvent_t event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  const DeviceScope scope(device_, what);
  NEREUS_RETURN_IF_ERROR(scope.status());
  // One who waits for it sleeps.
  cudaEvent_t event = nullptr;
  NEREUS_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(
                     &event, cudaEventDisableTiming | cudaEventBlockingSync),
                 what, "cudaEventCreateWithFlags"));
  return event;
}

void Stager::GiveEventBack(cudaEvent_t event) {
  MutexLock lock(&mu_);
  events_.push_back(event);
}

absl::Status Stager::WaitFor(absl::string_view what, cudaStream_t stream,
                             cudaStream_t other) {
  NEREUS_ASSIGN_OR_RETURN(const cudaEvent_t event, TakeEvent(what));
  absl::Status status =
      CudaStatus(cudaEventRecord(event, other), what, "cudaEventRecord");
  if (status.ok()) {
    status = CudaStatus(cudaStreamWaitEvent(stream, event, 0), what,
                        "cudaStreamWaitEvent");
  }
  // To record it again does not change what is waited for.
  GiveEventBack(event);
  return status;
}

absl::StatusOr<std::unique_ptr<Stager::Outgoing>> Stager::CopyOut(
    absl::string_view what, const float* source, int64_t count,
    cudaStream_t after, absl::Duration timeout) {
  if (count > 0) NEREUS_RETURN_IF_ERROR(CheckPointer(what, source));
  NEREUS_ASSIGN_OR_RETURN(Buffer values,
                          pool_->Take(what, count * kFloatBytes, timeout));
  auto outgoing = std::unique_ptr<Outgoing>(
      new Outgoing(this, std::string(what), std::move(values)));
  NEREUS_RETURN_IF_ERROR(WaitFor(what, out_, after));
  const absl::Status queued = QueuePieces(source, *outgoing);
  if (!queued.ok()) {
    // Some may be under way, into memory that is about to be others'.
    (void)cudaStreamSynchronize(out_);
    return queued;
  }
  return outgoing;
}

absl::Status Stager::QueuePieces(const float* source, Outgoing& outgoing) {
  const Buffer& values = outgoing.values();
  const auto* const from = reinterpret_cast<const uint8_t*>(source);
  for (int64_t start = 0; start < values.bytes(); start += kPieceBytes) {
    const int64_t bytes = std::min(kPieceBytes, values.bytes() - start);
    NEREUS_ASSIGN_OR_RETURN(const cudaEvent_t event, TakeEvent(outgoing.what_));
    outgoing.pieces_.push_back(event);
    NEREUS_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(values.data() + start, from + start,
                                   static_cast<size_t>(bytes),
                                   cudaMemcpyDeviceToHost, out_),
                   outgoing.what_, "cudaMemcpyAsync", bytes));
    NEREUS_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, out_),
                                      outgoing.what_, "cudaEventRecord"));
  }
  return absl::OkStatus();
}

Stager::Outgoing::~Outgoing() {
  // Its memory may be others' from now on.
  const absl::Status status = Await(values_.bytes());
  if (!status.ok()) NEREUS_LOG(Error) << status.message();
  for (const cudaEvent_t event : pieces_) stager_->GiveEventBack(event);
}

absl::Status Stager::Outgoing::Await(int64_t bytes) const {
  if (bytes <= 0 || pieces_.empty()) return absl::OkStatus();
  const auto last = static_cast<size_t>((bytes - 1) / kPieceBytes);
  NEREUS_CHECK(bytes <= values_.bytes()) << bytes;
  return CudaStatus(
      cudaEventSynchronize(pieces_[std::min(last, pieces_.size() - 1)]), what_,
      "cudaEventSynchronize");
}

absl::Status Stager::CopyIn(absl::string_view what, const Buffer& values,
                            float* destination, cudaStream_t then) {
  if (values.bytes() == 0) return absl::OkStatus();
  NEREUS_RETURN_IF_ERROR(CheckPointer(what, destination));
  // So that `then` waits for no other copy that comes after.
  MutexLock in_order(&in_order_);
  NEREUS_RETURN_IF_ERROR(WaitFor(what, in_, then));
  absl::Status status =
      CudaStatus(cudaMemcpyAsync(destination, values.data(),
                                 static_cast<size_t>(values.bytes()),
                                 cudaMemcpyHostToDevice, in_),
                 what, "cudaMemcpyAsync", values.bytes());
  if (status.ok()) status = WaitFor(what, then, in_);
  if (status.ok()) status = KeepUntilRead(what, values);
  // It may be under way, from memory that is about to be others'.
  if (!status.ok()) (void)cudaStreamSynchronize(in_);
  return status;
}

absl::Status Stager::KeepUntilRead(absl::string_view what,
                                   const Buffer& values) {
  std::list<Incoming> one;
  one.push_back({this, values, one.begin()});
  one.front().self = one.begin();
  Incoming* const incoming = &one.front();
  {
    MutexLock lock(&mu_);
    incoming_.splice(incoming_.end(), one);
  }
  // On a stream of its own: other copies need not wait for that.
  absl::Status status = WaitFor(what, dropping_, in_);
  if (status.ok()) {
    status = CudaStatus(cudaLaunchHostFunc(dropping_, &Stager::Drop, incoming),
                        what, "cudaLaunchHostFunc");
  }
  if (!status.ok()) {
    (void)cudaStreamSynchronize(in_);
    Drop(incoming);
  }
  return status;
}

void Stager::Drop(void* incoming) {
  Incoming& read = *static_cast<Incoming*>(incoming);
  std::list<Incoming> dropped;  // Without the lock: it may be the pool's again.
  MutexLock lock(&read.stager->mu_);
  std::list<Incoming>& all = read.stager->incoming_;
  dropped.splice(dropped.end(), all, read.self);
}

}  // namespace nereus
