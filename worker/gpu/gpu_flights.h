#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/device/stager.h"
#include "common/tensor/buffer.h"
#include "worker/gpu/push_stager.h"

namespace nereus {

// Ledger of a GPU client's pushes: the last push of each layer, from Push to
// Wait. It is used by the caller, which pushes and waits, by the staging
// thread, which copies, and by the host client, which reports on any thread
// that a round is done.
//
//   Add --> queued --Next--> staging --SetHandedOn--> handed on
//                                                     --SetLanded--> done
//
// "Handed on" means pushed to the host client. SetLanded can come before
// SetHandedOn: the round may be done while the staging thread still pushes. A
// push that fails while it is staged becomes handed on too, with its error, and
// never done. Thread-safe. Bounded: one push for each layer,
// because the caller adds a push only after the Wait for the layer's previous
// one.
class GpuFlights {
 public:
  // `layers`: number of layers of the model.
  explicit GpuFlights(size_t layers) : flights_(layers) {}

  // Ends the waits of Next and AwaitHandedOn. Next returns nothing from now on.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  bool is_stopped() const ABSL_LOCKS_EXCLUDED(mu_);

  // Forgets all pushes, because the job has gone back to a checkpoint.
  // REQUIRES: AwaitStaged has returned OK, and Add was not called since.
  void Reset() ABSL_LOCKS_EXCLUDED(mu_);

  // Notes that the caller leaves, and has queued its last update of the
  // parameters and state on its stream.
  void SetLeaving() ABSL_LOCKS_EXCLUDED(mu_);
  // True after SetLeaving, until Reset or Add.
  bool is_leaving() const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the step of the layer's last push; below 0 if there is none.
  int64_t LastStep(int layer) const ABSL_LOCKS_EXCLUDED(mu_);

  // True if the layer's last push is neither done nor failed.
  bool IsOpen(int layer) const ABSL_LOCKS_EXCLUDED(mu_);

  // True if the last push of every layer is of `step`, or of a later one.
  bool HasAll(int64_t step) const ABSL_LOCKS_EXCLUDED(mu_);

  // Queues `push` for the staging thread.
  void Add(GpuPush push) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the next push to stage, in the order of Add. Waits for it. Called
  // by the staging thread. Returns nothing after Stop.
  std::optional<GpuPush> Next() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until no push is queued, and none is being staged. Errors:
  // kDeadlineExceeded at `until`.
  absl::Status AwaitStaged(absl::Time until) ABSL_LOCKS_EXCLUDED(mu_);

  // Stores the pinned memory of the layer's last push. A mean gradient from the
  // servers will arrive in this memory.
  void SetValues(int layer, Buffer values) ABSL_LOCKS_EXCLUDED(mu_);

  // Marks the push as handed on to the host client, or as failed with `status`.
  void SetHandedOn(int layer, absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until the push of `step` is handed on. Returns its error, if it
  // failed. Returns OK at once if the layer's last push is of another step.
  // Errors: kDeadlineExceeded at `until`.
  absl::Status AwaitHandedOn(int layer, int64_t step, absl::Time until)
      ABSL_LOCKS_EXCLUDED(mu_);

  // True, once for each push, if the layer's last push is handed on without an
  // error and not done. The staging thread then calls HostClient::Hurry,
  // because the host client may have deferred the push.
  bool TakeUnhurried(int layer) ABSL_LOCKS_EXCLUDED(mu_);

  // Memory and progress of the result of a round.
  struct Outcome {
    Buffer mean;                // Pinned memory of the push (SetValues).
    float* gradient = nullptr;  // Memory for the mean (GpuPush::gradient).
    bool by_factors = false;    // See GpuPush.
    int64_t landed_count = 0;   // See NoteLanded.
  };
  // Returns the outcome of a round that is not done yet. Returns nothing if the
  // layer's last push is of another step.
  std::optional<Outcome> LookAt(int layer, int64_t step) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Adds `count` to landed_count, the number of values whose copy to the GPU
  // was queued before the round was done.
  void NoteLanded(int layer, int64_t count) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the outcome of a round that is done on the host, and drops the
  // push's reference to its pinned memory. Returns nothing if the layer's last
  // push is of another step.
  std::optional<Outcome> TakeOutcome(int layer, int64_t step)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Marks the push as done: its result is on the GPU at point `landed`.
  void SetLanded(int layer, absl::StatusOr<Stager::Point> landed)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Makes `stream` wait for the result of the push of `step`. Returns the error
  // of the copy to the GPU, if it failed. REQUIRES: the push is done.
  absl::Status Follow(int layer, int64_t step, const Stager& stager,
                      absl::string_view what, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Last push of one layer.
  struct Flight {
    // Step of the push; below 0 if the layer was not pushed.
    int64_t step = -1;
    float* gradient = nullptr;  // See Outcome.
    bool by_factors = false;    // See Outcome.
    bool is_handed_on = false;  // See SetHandedOn.
    bool is_hurried = false;    // See TakeUnhurried.
    bool is_done = false;       // See SetLanded.
    absl::Status failure;       // Error of the staging.
    Buffer values;              // See SetValues.
    int64_t landed_count = 0;   // See NoteLanded.
    absl::StatusOr<Stager::Point> landed = Stager::Point();
  };

  // Held for short times only, never while a thread waits for the GPU.
  mutable Mutex mu_;
  // True after Stop.
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  // See is_leaving.
  bool is_leaving_ ABSL_GUARDED_BY(mu_) = false;
  // True while a push that has left the queue is being staged.
  bool is_staging_ ABSL_GUARDED_BY(mu_) = false;
  // Pushes that are not staged yet, in the order of Add.
  std::deque<GpuPush> queue_ ABSL_GUARDED_BY(mu_);
  std::vector<Flight> flights_ ABSL_GUARDED_BY(mu_);  // Last push, by layer.
};

}  // namespace nereus
