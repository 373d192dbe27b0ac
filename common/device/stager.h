#ifndef NEREUS_COMMON_DEVICE_STAGER_H_
#define NEREUS_COMMON_DEVICE_STAGER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/device/pinned_pool.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Copies between one GPU's memory and pinned host memory, to the host and from
// it at once, each on a stream of its own, beside whatever the GPU computes. It
// waits for the GPU with events alone. Thread-safe.
class Stager {
 public:
  // What is copied at a time: when one of them is there, it can go on from
  // there.
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;

  // Errors: kUnavailable, no driver or no such device; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Stager>> Create(
      int device, std::shared_ptr<PinnedPool> pool);

  // Waits for what is under way.
  ~Stager();
  Stager(const Stager&) = delete;
  Stager& operator=(const Stager&) = delete;

  // Values on their way to the host.
  class Outgoing {
   public:
    ~Outgoing();
    Outgoing(const Outgoing&) = delete;
    Outgoing& operator=(const Outgoing&) = delete;

    // Pinned memory for all of them: what Await has waited for is there. It may
    // outlive this.
    const Buffer& values() const { return values_; }
    // Waits until the first `bytes` are. Errors: what CUDA says of the copy, or
    // of what it waits for.
    absl::Status Await(int64_t bytes) const;

   private:
    friend class Stager;
    Outgoing(Stager* stager, std::string what, Buffer values)
        : stager_(stager), what_(std::move(what)), values_(std::move(values)) {}

    Stager* const stager_;
    const std::string what_;
    const Buffer values_;
    std::vector<cudaEvent_t> pieces_;  // Recorded after each.
  };

  // Copies `count` float32 at `source`, device memory, when all is done that is
  // queued on `after` by now. `what`, for messages: "layer conv1, gradient".
  // `source` must stay as it is until all is there; this must outlive what it
  // returns. `timeout`: for pinned memory.
  //
  // Errors: kInvalidArgument, `source` is no memory of this device, or not
  // aligned to 4 bytes; of PinnedPool::Take; what CUDA says.
  absl::StatusOr<std::unique_ptr<Outgoing>> CopyOut(
      absl::string_view what, const float* source, int64_t count,
      cudaStream_t after, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Copies `values`, of the same pool, to `destination`, device memory for as
  // many, when all is done that is queued on `then` by now; what is queued
  // there from now on waits for it. Keeps a reference to `values` until then.
  // Errors: as above.
  absl::Status CopyIn(absl::string_view what, const Buffer& values,
                      float* destination, cudaStream_t then)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Whether `pointer` is memory of this device, aligned to float32.
  absl::Status CheckPointer(absl::string_view what, const void* pointer) const;

 private:
  // Values on their way to the device, until they have been read.
  struct Incoming {
    Stager* stager;
    Buffer values;
    std::list<Incoming>::iterator self;
  };

  Stager(int device, std::shared_ptr<PinnedPool> pool)
      : device_(device), pool_(std::move(pool)) {}

  absl::StatusOr<cudaEvent_t> TakeEvent(absl::string_view what)
      ABSL_LOCKS_EXCLUDED(mu_);
  void GiveEventBack(cudaEvent_t event) ABSL_LOCKS_EXCLUDED(mu_);
  // `stream` waits for what is queued on `other` by now.
  absl::Status WaitFor(absl::string_view what, cudaStream_t stream,
                       cudaStream_t other) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status QueuePieces(const float* source, Outgoing& outgoing);
  absl::Status KeepUntilRead(absl::string_view what, const Buffer& values)
      ABSL_LOCKS_EXCLUDED(mu_);
  // On a thread of CUDA's, on which nobody may call it: these have been read.
  static void Drop(void* incoming);

  const int device_;
  const std::shared_ptr<PinnedPool> pool_;
  cudaStream_t out_ = nullptr;
  cudaStream_t in_ = nullptr;
  cudaStream_t dropping_ = nullptr;
  Mutex in_order_;  // Before mu_.

  Mutex mu_;
  std::vector<cudaEvent_t> events_ ABSL_GUARDED_BY(mu_);  // Not in use.
  std::list<Incoming> incoming_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus

#endif  // NEREUS_COMMON_DEVICE_STAGER_H_
