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
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"
#include "common/tensor/value_range.h"

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
  static absl::StatusOr<std::unique_ptr<Stager>> Create(int device);

  // Waits for what is under way.
  ~Stager();
  Stager(const Stager&) = delete;
  Stager& operator=(const Stager&) = delete;

  // A point in a stream: when all is done that was queued there before it.
  // Others may wait for it. Must not outlive the stager.
  class Point {
   public:
    Point() = default;  // Nothing to wait for.
    ~Point() { Reset(); }
    Point(Point&& other) noexcept { *this = std::move(other); }
    Point& operator=(Point&& other) noexcept;

   private:
    friend class Stager;
    Point(Stager* stager, cudaEvent_t event) : stager_(stager), event_(event) {}
    void Reset();

    Stager* stager_ = nullptr;
    cudaEvent_t event_ = nullptr;
  };

  // `what`, here and below, is for messages: "layer conv1, gradient".
  absl::StatusOr<Point> Mark(absl::string_view what, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_);
  // What is queued on `stream` from now on waits for `point`.
  absl::Status Follow(absl::string_view what, cudaStream_t stream,
                      const Point& point) const;

  // Waits until it is reached. Errors: what CUDA says of what leads to it.
  absl::Status Await(absl::string_view what, const Point& point) const;

  // Values on their way to the host. What `values` has is there piece by piece.
  // An error is what CUDA says of the copy, or of what it waits for.
  class Outgoing final : public Arrival {
   public:
    // Waits until all are there.
    ~Outgoing() override;
    Outgoing(const Outgoing&) = delete;
    Outgoing& operator=(const Outgoing&) = delete;

    // Pinned memory for all of them, which may outlive this.
    const Buffer& values() const { return values_; }

    bool IsThere(int64_t bytes) override;
    absl::Status Await(int64_t bytes) override;

   private:
    friend class Stager;
    Outgoing(int device, std::string what, Buffer values)
        : device_(device), what_(std::move(what)), values_(std::move(values)) {}

    cudaEvent_t EventOf(int64_t bytes) const;

    const int device_;
    const std::string what_;
    const Buffer values_;
    std::vector<Point> pieces_;  // After each.
  };

  // Copies what is at `source`, device memory, as much as `values`, pinned
  // memory (with other memory, it waits for it), has room for, once `after` is
  // reached. `source` must stay as it is until all is there; this must outlive
  // what it returns. On out(), or on another stream of this device.
  //
  // Errors: kInvalidArgument, `source` is no memory of this device, or not
  // aligned to 4 bytes; what CUDA says.
  absl::StatusOr<std::shared_ptr<Outgoing>> CopyOut(
      absl::string_view what, const void* source, Buffer values,
      const Point& after, cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mu_);

  int device() const { return device_; }

  // The stream for what leaves in the order of the backward pass, and one for
  // what must not wait for that.
  cudaStream_t out() const { return out_; }
  cudaStream_t in() const { return in_; }  // CopyIn's.
  cudaStream_t aside() const { return aside_; }

  // Copies these parts of `values`, pinned memory, to the same parts of
  // `destination`, device memory for as many, once `after` is reached; returns
  // the point at which they are there. Keeps a reference to `values` until
  // then. Errors: as above; nothing is under way then.
  absl::StatusOr<Point> CopyIn(absl::string_view what, const Buffer& values,
                               absl::Span<const ValueRange> parts,
                               float* destination, const Point& after)
      ABSL_LOCKS_EXCLUDED(mu_);
  // All of them.
  absl::StatusOr<Point> CopyIn(absl::string_view what, const Buffer& values,
                               float* destination, const Point& after)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Drops the references to what is there by now.
  void ReleaseRead() ABSL_LOCKS_EXCLUDED(mu_);

  // What was copied so far, or is being copied.
  int64_t bytes_out() const { return bytes_out_; }
  int64_t bytes_in() const { return bytes_in_; }

  // Whether `pointer` is memory of this device, aligned to float32.
  absl::Status CheckPointer(absl::string_view what, const void* pointer) const;

 private:
  // Values on their way to the device.
  struct Incoming {
    Buffer values;
    Point there;
  };

  explicit Stager(int device) : device_(device) {}

  absl::StatusOr<Point> TakePoint(absl::string_view what)
      ABSL_LOCKS_EXCLUDED(mu_);
  void GiveEventBack(cudaEvent_t event) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status QueueParts(absl::string_view what, const Buffer& values,
                          absl::Span<const ValueRange> parts,
                          float* destination);
  absl::Status QueuePieces(const void* source, cudaStream_t stream,
                           Outgoing& outgoing);

  const int device_;
  std::atomic<int64_t> bytes_out_{0};
  std::atomic<int64_t> bytes_in_{0};
  cudaStream_t out_ = nullptr;
  cudaStream_t in_ = nullptr;
  cudaStream_t aside_ = nullptr;

  Mutex in_order_;  // Before mu_.

  Mutex mu_;
  std::vector<cudaEvent_t> events_ ABSL_GUARDED_BY(mu_);  // Not in use.
  std::deque<Incoming> incoming_ ABSL_GUARDED_BY(mu_);    // In order.
};

}  // namespace nereus
