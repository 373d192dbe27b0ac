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

// Copies between the memory of one GPU and pinned host memory. Copies in both
// directions run at once, on streams of the stager, beside the GPU's computing.
// The stager waits for the GPU by events only. Thread-safe.
class Stager {
 public:
  // Number of bytes that are copied at a time. Each piece can be sent on as
  // soon as its copy has ended.
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;

  // Errors: kUnavailable, no driver or no such device; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Stager>> Create(int device);

  // Returns a new stream on the thread's device, with the highest priority. The
  // caller owns it. REQUIRES: a DeviceScope.
  static absl::StatusOr<cudaStream_t> MakeStream(absl::string_view what);

  // Waits for all copies.
  ~Stager();
  Stager(const Stager&) = delete;
  Stager& operator=(const Stager&) = delete;

  // Point in a stream: it is reached when all work that was queued before it is
  // done. Other streams, and threads, may wait for it. A value type; must not
  // outlive the stager. A Point that is default-constructed is always reached.
  class Point {
   public:
    Point() = default;

   private:
    friend class Stager;
    explicit Point(std::shared_ptr<CUevent_st> event)
        : event_(std::move(event)) {}

    // Event that was recorded in the stream. The last copy gives it back to the
    // stager. Null: the point is reached.
    std::shared_ptr<CUevent_st> event_;
  };

  // Returns the current end of `stream`. `what`, here and below: subject of
  // messages, for example "layer conv1, gradient".
  absl::StatusOr<Point> Mark(absl::string_view what, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes all work that is queued on `stream` from now on wait for `point`.
  absl::Status Follow(absl::string_view what, cudaStream_t stream,
                      const Point& point) const;

  // Waits until `point` is reached. Errors: those of the work before it.
  absl::Status Await(absl::string_view what, const Point& point) const;

  // Values on their way to the host. They arrive piece by piece. Errors: those
  // of the copy and of the work that it waits for.
  class Outgoing final : public Arrival {
   public:
    // Waits until all values are copied, because their memory may be reused
    // afterwards.
    ~Outgoing() override;
    Outgoing(const Outgoing&) = delete;
    Outgoing& operator=(const Outgoing&) = delete;

    // Pinned memory of the values. May outlive this.
    const Buffer& values() const { return values_; }

    // IsThere and Await concern the pieces that have the first `bytes` bytes.
    bool IsThere(int64_t bytes) override;
    absl::Status Await(int64_t bytes) override;

   private:
    friend class Stager;
    Outgoing(int device, std::string what, Buffer values)
        : device_(device), what_(std::move(what)), values_(std::move(values)) {}

    // Returns the event after the piece that has byte `bytes` - 1.
    cudaEvent_t EventOf(int64_t bytes) const;

    // Device of the values' source.
    const int device_;
    const std::string what_;
    // Pinned memory that the copy fills.
    const Buffer values_;
    std::vector<Point> pieces_;  // Ends of the pieces.
  };

  // Queues a copy from `source`, device memory, to `values`, pinned memory, on
  // `stream`, once `after` is reached. (With memory that is not pinned, it
  // waits for the copy.) Fills all of `values`. `source` must not change until
  // all values are copied. The stager must outlive the result. `stream`: out(),
  // side_stream(), or another stream of this device.
  //
  // Errors: kInvalidArgument, `source` is not memory of this device, or not
  // aligned to 4 bytes; other errors of CUDA.
  absl::StatusOr<std::shared_ptr<Outgoing>> CopyOut(
      absl::string_view what, const void* source, Buffer values,
      const Point& after, cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  int device() const { return device_; }

  // Stream for values that leave in the order of the backward pass.
  cudaStream_t out() const { return out_; }
  cudaStream_t in() const { return in_; }  // Stream of CopyIn.
  // Stream for work that must not wait for the other two.
  cudaStream_t side_stream() const { return side_stream_; }

  // Queues a copy of `parts` of `values`, pinned memory, to the same parts of
  // `destination`, device memory, once `after` is reached. Returns the point at
  // which the copy has ended. Keeps a reference to `values` until then. Errors:
  // as for CopyOut; then no copy is under way.
  absl::StatusOr<Point> CopyIn(absl::string_view what, const Buffer& values,
                               absl::Span<const ValueRange> parts,
                               float* destination, const Point& after)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Copies all of `values`.
  absl::StatusOr<Point> CopyIn(absl::string_view what, const Buffer& values,
                               float* destination, const Point& after)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Drops the references to values that have been copied to the device.
  void ReleaseRead() ABSL_LOCKS_EXCLUDED(mu_);

  // Number of bytes to copy to the host, and to the device, that were queued so
  // far.
  int64_t bytes_out() const { return bytes_out_; }
  int64_t bytes_in() const { return bytes_in_; }

  // Returns OK if the work on `stream` is done, and not captured for a graph.
  // Errors: kFailedPrecondition.
  absl::Status CheckNotCaptured(absl::string_view what,
                                cudaStream_t stream) const;

  // True if `pointer` is memory of a GPU.
  bool IsOnDevice(const void* pointer) const;
  // Returns OK if `pointer` is memory of this device, aligned to float32.
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
  // Returns a Point that gives the event back.
  Point Own(cudaEvent_t event);
  // Puts the event of a Point back into events_.
  void GiveEventBack(cudaEvent_t event) ABSL_LOCKS_EXCLUDED(mu_);
  // Queue the copies of CopyIn, and of CopyOut.
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

  // Held while a copy to the device is queued, so that incoming_ has the order
  // of the stream. Taken before mu_.
  Mutex in_order_;

  Mutex mu_;
  // Events that no Point has, for reuse.
  std::vector<cudaEvent_t> events_ ABSL_GUARDED_BY(mu_);
  // Values that are being copied to the device, in the order of in().
  std::deque<Incoming> incoming_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
