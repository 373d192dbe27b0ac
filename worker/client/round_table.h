#pragma once

#include <array>
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

// Place where the caller's threads wait for the machine: a StepLedger under a
// lock, and the account of the caller's memory that the client has borrowed. A
// Wait for a layer returns OK only when the client has given back all buffers
// that the caller pushed for the layer. Thread-safe.
//
// The client and the borrowed buffers own the table together: a transport can
// drop its last reference to a buffer a moment after the client has closed the
// transport.
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

  // Memory that the caller lends for a push. Values may still arrive; null: all
  // are there.
  struct Lent {
    absl::Span<const float> values;
    std::shared_ptr<Arrival> arrival = nullptr;
  };
  // Largest number of memories of one push.
  static constexpr size_t kLentMax = 3;
  // A push that the ledger has noted, with buffers over the lent memory. This
  // memory counts as borrowed until its buffer's last reference is dropped.
  struct Push {
    StepLedger::Pushed pushed;
    std::array<Buffer, kLentMax> buffers;
  };
  // Notes a push of a layer in the ledger (StepLedger::BeginPush), and borrows
  // the memory of `lent`, at most kLentMax. `gradient`: memory that the caller
  // gave for the mean gradient, or empty.
  absl::StatusOr<Push> BeginPush(int layer, int64_t step, absl::Time now,
                                 absl::Span<const float> gradient = {},
                                 absl::Span<const Lent> lent = {})
      ABSL_LOCKS_EXCLUDED(mu_);

  // Notes in the ledger that a round is done (StepLedger::Finish). `mean`: the
  // mean gradient; empty if it is in the memory that BeginPush got, or if the
  // caller does not run the optimizer.
  StepLedger::Done Finish(int layer, int64_t round, bool skipped,
                          absl::Time now, Buffer mean = Buffer())
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the mean gradient of a layer's last push, float32, shape
  // {parameters}. Valid until the next push of the layer. Empty if the round is
  // not done, or if the caller has since acknowledged that the job went back.
  absl::Span<const float> Mean(int layer) const ABSL_LOCKS_EXCLUDED(mu_);

  // Notes in the ledger that a gradient of this worker in `step`, or one of its
  // factors, has a NaN or an infinity (StepLedger::NoteUnfit).
  void NoteUnfit(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);

  // Notes in the ledger that the caller leaves the job
  // (StepLedger::BeginLeave). If the caller had not begun to leave before, the
  // patience of AwaitOver counts from `now`.
  absl::StatusOr<std::optional<StepLedger::Call>> BeginLeave(absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Begins a gathering of the caller (GatheringLedger::Begin). Errors: those of
  // StepLedger::Interruption; kFailedPrecondition, the caller leaves the job.
  absl::StatusOr<std::optional<Gather>> BeginGathering(std::string value)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Notes that the coordinator has sent the message Waiting, so it is alive.
  void NoteWaiting() ABSL_LOCKS_EXCLUDED(mu_);

  // ---- Waits. If the ledger has an Interruption, a wait that returns a status
  // ends with this error, unless its comment says otherwise. A wait with
  // `until` returns kDeadlineExceeded at that time, and may be called again.

  // Waits until no pushed buffer is borrowed, and notes that the caller knows
  // that the job went back. Errors: the job's failure.
  absl::Status Acknowledge(absl::Time until = absl::InfiniteFuture())
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the first values of all layers have arrived in this life.
  absl::Status AwaitFirstValues(absl::Time until = absl::InfiniteFuture()) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until `step` has begun, and returns it (StepLedger::TakeBegun).
  absl::StatusOr<StepInfo> AwaitBegin(int64_t step,
                                      absl::Time until = absl::InfiniteFuture())
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the answer to the gathering that has begun, and takes the answer.
  absl::StatusOr<std::vector<std::string>> AwaitGathered(
      absl::Time until = absl::InfiniteFuture()) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until `round` of a layer is done and the client has given back the
  // layer's buffers, at most until `from + timeout`. Errors: kInvalidArgument,
  // the round was not pushed; kDeadlineExceeded.
  absl::Status Await(int layer, int64_t round, absl::Duration timeout,
                     absl::Time from = SteadyNow()) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until this worker's membership is over. Errors: kDeadlineExceeded at
  // `until`; kUnavailable, `patience` has passed since the last NoteWaiting and
  // since the caller began to leave. A repeated call does not begin the
  // patience anew.
  absl::Status AwaitOver(absl::Duration patience,
                         absl::Time until = absl::InfiniteFuture()) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until none of the caller's memory is borrowed. Returns false if some
  // of it is still borrowed after `timeout`.
  bool AwaitReturned(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- Memory.

  // Returns a buffer over the caller's parameters or state. The machine keeps
  // the buffer for its whole life, so only AwaitReturned waits for this memory.
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
  // Returns the mean push-to-done time of each layer since the last call,
  // capped at kComputeTimeMax; zero if no round was done.
  std::vector<absl::Duration> TakeSyncTimes() ABSL_LOCKS_EXCLUDED(mu_);

  // Numbers since this was made.
  struct Counts {
    int64_t skipped_steps = 0;    // Steps that the job has skipped.
    int64_t unfit_gradients = 0;  // Calls of NoteUnfit.
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    int borrowed = 0;  // Number of the layer's pushed buffers in use.
    absl::Span<const float> gradient;  // The caller's memory for the mean.
    Buffer mean;                       // The mean, if it is in other memory.
    bool has_mean = false;             // True if the last pushed round is done.
    absl::Time pushed_at;              // Time of the last push.
    Cost cost;                         // Sums over the rounds done.
    Cost taken;                        // Value of `cost` at TakeSyncTimes.
  };

  // Returns a buffer over the memory. When its last reference is dropped, 1 is
  // subtracted from `*borrowed`, a count in this table.
  Buffer Counted(int* borrowed, const Lent& lent);
  // True if no buffer of any push is borrowed any more.
  bool IsReturned() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  StepLedger ledger_ ABSL_GUARDED_BY(mu_);           // Steps and rounds.
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);  // Entries of the layers.
  Counts counts_ ABSL_GUARDED_BY(mu_);               // See counts().
  // Number of buffers of BorrowForLife in use.
  int borrowed_for_life_ ABSL_GUARDED_BY(mu_) = 0;
  // Time of the last NoteWaiting, or of BeginLeave if that came later.
  absl::Time heard_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
};

}  // namespace nereus
