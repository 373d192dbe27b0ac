#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"
#include "common/tensor/value_range.h"

namespace nereus {

// Copies values between the memory of one GPU and pinned host memory. Copies
// in both directions run at the same time, on streams of the stager, while the
// GPU computes. No call waits for all work of the GPU. Thread-safe.
class Stager {
 public:
  // Length, in bytes, of the parts of a copy to the host; the last part may be
  // shorter. The driver can send the frames of a part as soon as the copy of
  // this part has ended.
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;

  // Makes a stager for GPU `device`. Errors: those of CheckDevice, DeviceScope
  // and CudaStatus.
  static absl::StatusOr<std::unique_ptr<Stager>> Create(int device);

  // Returns a new stream on the thread's device, with the highest priority. The
  // caller owns it. REQUIRES: the calling thread is in a DeviceScope.
  static absl::StatusOr<cudaStream_t> MakeStream(absl::string_view what);

  // Waits until the work on out(), in() and side_stream() is done.
  ~Stager();
  // Waits for the same, so that memory which this work uses can be freed before
  // this object. Logs errors.
  void Drain();
  Stager(const Stager&) = delete;
  Stager& operator=(const Stager&) = delete;

  // Point in a stream. It is reached when all work that was queued on the
  // stream before the point is done. Another stream can wait for it (Follow),
  // and a thread too (Await). A value type; must not outlive the stager. A
  // Point that is default-constructed is always reached.
  class Point {
   public:
    Point() = default;

   private:
    friend class Stager;
    explicit Point(std::shared_ptr<CUevent_st> event)
        : event_(std::move(event)) {}

    // Event that was recorded in the stream. The last copy of the Point gives
    // the event back to the stager. Null: the point is reached.
    std::shared_ptr<CUevent_st> event_;
  };

  // Returns the point at the current end of `stream`. `what`, here and below:
  // subject of messages, for example "layer conv1, gradient".
  absl::StatusOr<Point> Mark(absl::string_view what, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes all work that is queued on `stream` from now on wait for `point`.
  absl::Status Follow(absl::string_view what, cudaStream_t stream,
                      const Point& point) const;

  // Blocks until `point` is reached. If the work before the point has failed,
  // returns the error of that work.
  absl::Status Await(absl::string_view what, const Point& point) const;

  // Values on their way to the host. They arrive in parts, in order. Errors of
  // Await: those of the copy and of the work that the copy waits for.
  class Outgoing final : public Arrival {
   public:
    // Waits until all values are copied, because their memory may be reused
    // afterwards.
    ~Outgoing() override;
    Outgoing(const Outgoing&) = delete;
    Outgoing& operator=(const Outgoing&) = delete;

    // Returns the pinned memory of the values. Copies of the buffer may outlive
    // this object.
    const Buffer& values() const { return values_; }

    // IsThere is true, and Await returns, when all parts that contain any of
    // the first `bytes` bytes have arrived. REQUIRES: `bytes` is at most the
    // length of values().
    bool IsThere(int64_t bytes) override;
    absl::Status Await(int64_t bytes) override;

   private:
    friend class Stager;
    Outgoing(int device, std::string what, Buffer values)
        : device_(device), what_(std::move(what)), values_(std::move(values)) {}

    // Returns the event at the end of the part that contains byte `bytes` - 1.
    cudaEvent_t EventOf(int64_t bytes) const;

    // Device of the values' source.
    const int device_;
    const std::string what_;
    // Pinned memory that the copy fills.
    const Buffer values_;
    std::vector<Point> pieces_;  // Ends of the parts.
  };

  // Queues a copy from `source`, device memory, to `values`, pinned memory, on
  // `stream`. The copy begins once `after` is reached, and fills all of
  // `values`. If `values` is not pinned, the call may block until the copy has
  // ended. `source` must not change until all values are copied. The stager
  // must outlive the result. `stream`: out(), side_stream(), or another stream
  // of this device.
  //
  // Errors: kInvalidArgument, `source` is not memory of this device, or not
  // aligned to 4 bytes; others of CudaStatus and DeviceScope.
  absl::StatusOr<std::shared_ptr<Outgoing>> CopyOut(
      absl::string_view what, const void* source, Buffer values,
      const Point& after, cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Queues a copy of `runs` runs of `run_bytes` bytes each, which begin
  // `stride_bytes` apart in `source`, to `values`, pinned memory that they fill
  // one after the other. The copy does not count in bytes_out. Otherwise as
  // CopyOut.
  absl::StatusOr<std::shared_ptr<Outgoing>> CopyRunsOut(
      absl::string_view what, const void* source, int64_t run_bytes,
      int64_t stride_bytes, int64_t runs, Buffer values, const Point& after,
      cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  int device() const { return device_; }  // Number of the GPU.

  // Stream for copies of pushed values to the host, in the order of the pushes.
  cudaStream_t out() const { return out_; }
  cudaStream_t in() const { return in_; }  // Stream of CopyIn.
  // Stream for work that must not wait for the work on out() and in().
  cudaStream_t side_stream() const { return side_stream_; }

  // Queues a copy of `parts` of `values`, pinned memory, to the same parts of
  // `destination`, device memory, on in(). The copy begins once `after` is
  // reached. Returns the point at which the copy has ended. Keeps a reference
  // to `values` until the first call of ReleaseRead, CopyIn or CopyOut after
  // the copy has ended. Errors: as for CopyOut; after an error, no copy of this
  // call is under way.
  absl::StatusOr<Point> CopyIn(absl::string_view what, const Buffer& values,
                               absl::Span<const ValueRange> parts,
                               float* destination, const Point& after)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Queues a copy of all of `values`, in the same way.
  absl::StatusOr<Point> CopyIn(absl::string_view what, const Buffer& values,
                               float* destination, const Point& after)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Drops the references to the values of all copies to the device that have
  // ended.
  void ReleaseRead() ABSL_LOCKS_EXCLUDED(mu_);

  // Number of bytes of all copies to the host by CopyOut (bytes_out) and to the
  // device (bytes_in) that were queued so far.
  int64_t bytes_out() const { return bytes_out_; }
  int64_t bytes_in() const { return bytes_in_; }

  // Returns OK if CUDA runs the work that is queued on `stream`, and does not
  // capture it for a CUDA graph. Errors: kFailedPrecondition, `stream` is being
  // captured; others of CudaStatus and DeviceScope.
  absl::Status CheckNotCaptured(absl::string_view what,
                                cudaStream_t stream) const;

  // True if `pointer` is memory of any GPU, or memory that CUDA moves between
  // GPU and host.
  bool IsOnDevice(const void* pointer) const;
  // Returns OK if `pointer` is memory of this device, aligned to 4 bytes.
  // Errors: kInvalidArgument; others of CudaStatus and DeviceScope.
  absl::Status CheckPointer(absl::string_view what, const void* pointer) const;

 private:
  // Values on their way to the device.
  struct Incoming {
    Buffer values;
    Point there;  // End of their copy.
  };

  explicit Stager(int device) : device_(device) {}

  // Returns a Point with an event from events_, or with a new one.
  absl::StatusOr<Point> TakePoint(absl::string_view what)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a Point of `event`. The last copy of the Point calls GiveEventBack.
  Point Own(cudaEvent_t event);
  // Puts the event of a Point back into events_.
  void GiveEventBack(cudaEvent_t event) ABSL_LOCKS_EXCLUDED(mu_);
  // QueueParts queues the copies of CopyIn, QueuePieces those of CopyOut. After
  // an error, some of the copies may be queued.
  absl::Status QueueParts(absl::string_view what, const Buffer& values,
                          absl::Span<const ValueRange> parts,
                          float* destination);
  absl::Status QueuePieces(const void* source, cudaStream_t stream,
                           Outgoing& outgoing);

  const int device_;
  std::atomic<int64_t> bytes_out_{0};  // See bytes_out.
  std::atomic<int64_t> bytes_in_{0};
  cudaStream_t out_ = nullptr;  // See out, in and side_stream.
  cudaStream_t in_ = nullptr;
  cudaStream_t side_stream_ = nullptr;

  // Held while a call queues a copy to the device, so that incoming_ has the
  // order of the stream. Taken before mu_.
  Mutex in_order_;

  Mutex mu_;
  // Events that no Point uses now. Later Points reuse them.
  std::vector<cudaEvent_t> events_ ABSL_GUARDED_BY(mu_);
  // Values of copies to the device, in the order of in(), until ReleaseRead
  // drops them.
  std::deque<Incoming> incoming_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
