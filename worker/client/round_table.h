#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/tensor/buffer.h"
#include "worker/machine/step_ledger.h"
#include "worker/public/client.h"

namespace nereus {

// The place where the caller's threads wait for the machine: a StepLedger under
// a lock, and the caller's memory that the client has borrowed. A Wait returns
// OK only when no buffer of the layer is borrowed any more. Thread-safe.
//
// Shared by the client and by the buffers that the table counts: a transport
// may drop its last reference to a buffer a moment after the client has closed
// the transport.
class RoundTable : public std::enable_shared_from_this<RoundTable> {
 public:
  // `layers` are the layers' names, for messages.
  explicit RoundTable(const std::vector<std::string>& layers);

  // Calls `use` with the ledger, under the lock; returns what it returns.
  template <typename F>
  auto Use(F&& use) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return std::forward<F>(use)(ledger_);
  }
  template <typename F>
  auto Use(F&& use) const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return std::forward<F>(use)(std::as_const(ledger_));
  }

  // Notes a push of a layer as StepLedger::BeginPush does. `gradient` is the
  // caller's room for the mean, or empty.
  absl::StatusOr<StepLedger::Pushed> BeginPush(
      int layer, int64_t step, absl::Time now,
      absl::Span<const float> gradient = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // Notes a round that is done as StepLedger::Finish does. `mean` holds the
  // mean gradient, unless it is in the caller's room for it.
  StepLedger::Done Finish(int layer, int64_t round, bool skipped,
                          absl::Time now, Buffer mean = Buffer())
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the mean gradient of a layer's last push, float32, shape
  // {parameters}. Valid until the next push of the layer. Empty: the round is
  // not done, or the caller has acknowledged since that the job went back.
  absl::Span<const float> Mean(int layer) const ABSL_LOCKS_EXCLUDED(mu_);

  // Notes at `now` that the caller leaves the job as StepLedger::BeginLeave
  // does. If the caller had not begun to leave before, the patience of
  // AwaitOver begins.
  absl::StatusOr<std::optional<StepLedger::Call>> BeginLeave(absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Begins a gathering of the caller (GatheringLedger::Begin). Errors:
  // Interruption's; kFailedPrecondition, the caller leaves the job.
  absl::StatusOr<std::optional<Gather>> BeginGathering(std::string value)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Notes that the coordinator has sent Waiting, so it is alive.
  void NoteWaiting() ABSL_LOCKS_EXCLUDED(mu_);

  // ---- Waits. An Interruption of the ledger ends those that return its error.
  // Those with `until` return kDeadlineExceeded at that time, and may be called
  // again.

  // Acknowledges that the job went back, once no pushed buffer is borrowed.
  // Errors: the job's failure.
  absl::Status Acknowledge(absl::Time until = absl::InfiniteFuture())
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the first values of all layers have arrived.
  absl::Status AwaitFirstValues(absl::Time until = absl::InfiniteFuture()) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until `step` has begun, and takes it (StepLedger::TakeBegun).
  absl::StatusOr<StepInfo> AwaitBegin(int64_t step,
                                      absl::Time until = absl::InfiniteFuture())
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the answer of the gathering that has begun, and takes it.
  absl::StatusOr<std::vector<std::string>> AwaitGathered(
      absl::Time until = absl::InfiniteFuture()) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until `round` of a layer is done and its buffers are free, until
  // `from + timeout` at most. Errors: kInvalidArgument, the round was not
  // pushed; kDeadlineExceeded.
  absl::Status Await(int layer, int64_t round, absl::Duration timeout,
                     absl::Time from = SteadyNow()) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the membership is over. Errors: kDeadlineExceeded at `until`;
  // kUnavailable, `patience` has passed since the last NoteWaiting and since
  // the caller has begun to leave, in however many calls.
  absl::Status AwaitOver(absl::Duration patience,
                         absl::Time until = absl::InfiniteFuture()) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until none of the caller's memory is borrowed; false if some still is
  // after `timeout`.
  bool AwaitReturned(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- Memory.

  // Returns a buffer over memory that the caller pushed for a layer. The table
  // counts it until the buffer's last reference is dropped.
  Buffer Borrow(int layer, const float* values, size_t count,
                std::shared_ptr<Arrival> arrival = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a buffer over the caller's parameters or state. The machine keeps
  // them, so only AwaitReturned waits for them.
  Buffer BorrowForLife(absl::Span<float> values,
                       std::shared_ptr<Arrival> arrival = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Number of a layer's rounds that are done, and the sum of their times from
  // push to done.
  struct Cost {
    int64_t rounds = 0;
    absl::Duration latency_total;
  };
  Cost cost(int layer) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    int borrowed = 0;  // Number of the layer's pushed buffers in use.
    absl::Span<const float> gradient;  // The caller's room for the mean.
    Buffer mean;                       // The mean, if it is elsewhere.
    bool has_mean = false;             // The round of the last push is done.
    absl::Time pushed_at;              // Time of the last push.
    Cost cost;                         // Sums over the rounds done.
  };

  // Returns a buffer that takes 1 from `*borrowed`, a field of this table, when
  // its last reference is dropped.
  Buffer Counted(int* borrowed, float* values, size_t count,
                 std::shared_ptr<Arrival> arrival);
  // True if no buffer of a push is borrowed any more.
  bool IsReturned() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  StepLedger ledger_ ABSL_GUARDED_BY(mu_);           // Steps and rounds.
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);  // Entries of the layers.
  int borrowed_for_life_ ABSL_GUARDED_BY(mu_) = 0;   // Parameters and states.
  // Last step of which the caller has pushed all layers, and the machine's life
  // in which it did so.
  StepLedger::Call pushed_all_ ABSL_GUARDED_BY(mu_);
  // Time of the last NoteWaiting, or of BeginLeave if that came later.
  absl::Time heard_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
};

}  // namespace nereus
