#ifndef NEREUS_WORKER_CLIENT_ROUND_TABLE_H_
#define NEREUS_WORKER_CLIENT_ROUND_TABLE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/frame.h"
#include "common/tensor/buffer.h"
#include "worker/machine/loss_scale.h"
#include "worker/public/client.h"

namespace nereus {

// Where the caller's threads and the driver's meet: how far each layer is, who
// still holds the caller's buffers, and whether the job has failed.
// Thread-safe.
//
// Shared by the client and the buffers that it lends out: a transport may drop
// its last reference to one a moment after the client has closed it.
class RoundTable : public std::enable_shared_from_this<RoundTable> {
 public:
  // `layers`: their names, for messages.
  explicit RoundTable(std::vector<std::string> layers);

  // Errors: kInvalidArgument, no such layer.
  absl::Status CheckLayer(int layer) const;

  // The machine starts, or starts afresh: the caller's first values are to
  // come. Returns the number of the machine's life, from 1. From the second one
  // on, every call of the caller's fails with kOutOfRange, until it has heard.
  int64_t Restart() ABSL_LOCKS_EXCLUDED(mu_);

  // The caller has: it uses no values and begins again. Waits until none of its
  // buffers is in use. Errors: the failure.
  absl::Status Acknowledge() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until all first values are there, however long that takes.
  // Errors: the failure; kOutOfRange, the machine has started afresh.
  absl::Status AwaitFirstValues() const ABSL_LOCKS_EXCLUDED(mu_);

  // The next step that the caller may begin: after the last one that it began,
  // or the first one.
  int64_t next_step() const ABSL_LOCKS_EXCLUDED(mu_);
  // The same for the caller, and in which life. Errors: kOutOfRange; the
  // failure.
  struct StepOfLife {
    int64_t step = kInitialRound;
    int64_t life = 0;
  };
  absl::StatusOr<StepOfLife> step_to_begin() const ABSL_LOCKS_EXCLUDED(mu_);
  // The last step of which the caller has pushed something, and in which life.
  // Errors: kOutOfRange; the failure.
  absl::StatusOr<StepOfLife> last_step() const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the caller has pushed every layer of the step that it has begun.
  bool HasPushedAll() const ABSL_LOCKS_EXCLUDED(mu_);
  // What the caller must hear before anything else: that the machine has
  // started afresh (kOutOfRange), or the failure.
  absl::Status interruption() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return Interruption();
  }
  // Whether all that the caller has pushed is done.
  bool IsIdle() const ABSL_LOCKS_EXCLUDED(mu_);
  // The machine has let the caller begin it.
  void Begin(const StepInfo& step) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for that. Errors: the failure; kOutOfRange, as above.
  absl::StatusOr<StepInfo> AwaitBegin(int64_t step) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether it returns at once.
  bool HasBegun(int64_t step) const ABSL_LOCKS_EXCLUDED(mu_);

  // The caller pushes `step`, in the machine's life that is returned, with the
  // loss scale that the step began with.
  // Errors: kInvalidArgument, no such layer, a step that was not begun, or not
  // the layer's next one; kOutOfRange; the failure.
  struct Pushed {
    int64_t life = 0;
    float loss_scale = 1.0f;
  };
  // `gradient`: where the mean is to go, or empty.
  absl::StatusOr<Pushed> BeginPush(int layer, int64_t step, absl::Time now,
                                   absl::Span<const float> gradient = {})
      ABSL_LOCKS_EXCLUDED(mu_);

  // A reference to the caller's memory, counted until it is dropped. This must
  // outlive it.
  Buffer Borrow(int layer, const float* values, size_t count,
                std::shared_ptr<Arrival> arrival = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The same for the caller's parameters and state, which no Await waits for:
  // they stay with the client.
  Buffer Lend(absl::Span<float> values,
              std::shared_ptr<Arrival> arrival = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);

  // OK if all layers of the step that was begun are pushed; or none of them, if
  // `or_untouched`. Errors: kFailedPrecondition, naming those that are not.
  absl::Status CheckComplete(bool or_untouched) const ABSL_LOCKS_EXCLUDED(mu_);

  // The machine is done with `round`, which is `skipped` or not, and leaves the
  // mean gradient in `mean`, unless it is empty.
  void Finish(int layer, int64_t round, bool skipped, absl::Time now,
              Buffer mean = Buffer()) ABSL_LOCKS_EXCLUDED(mu_);

  // There, or where it was to go; until the layer is pushed again.
  absl::Span<const float> Mean(int layer) const ABSL_LOCKS_EXCLUDED(mu_);

  // Whether a step of which some round is done is skipped, if it is the last
  // one that is.
  bool Skipped(int64_t step) const ABSL_LOCKS_EXCLUDED(mu_);

  // A gradient of this worker's in `step` cannot be used.
  void NoteUnfit(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  // For the next step that begins, by what became of those before.
  float loss_scale() const ABSL_LOCKS_EXCLUDED(mu_);

  // The membership is over: AwaitOver returns, and if it has failed, so do all
  // other waits.
  void End(const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  // The coordinator says that it waits for something.
  void NoteWaiting() ABSL_LOCKS_EXCLUDED(mu_);
  // For `timeout` after that was said last, at most.
  // Errors: the failure; kOutOfRange; kDeadlineExceeded.
  absl::Status AwaitOver(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // The job cannot go on: every wait ends with `failure`, the first one counts.
  void Fail(const absl::Status& failure) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mu_);

  // The last step that was pushed of a layer, or that of its first values.
  int64_t pushed(int layer) const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether a round is done, if there is such a layer.
  bool IsDone(int layer, int64_t round) const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until `round` is done and the caller's buffers are free, for
  // `timeout` after `from` at most.
  // Errors: kInvalidArgument, not pushed; kDeadlineExceeded; the failure.
  absl::Status Await(int layer, int64_t round, absl::Duration timeout,
                     absl::Time from = SteadyNow()) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether it returns at once, but for buffers that others still hold.
  bool IsSettled(int layer, int64_t round) const ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until none of the caller's memory is in use any more; false if some
  // still is after `timeout`.
  bool AwaitReturned(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mu_);

  // The last round that every layer has done; kInitialRound also before that
  // one.
  int64_t round() const ABSL_LOCKS_EXCLUDED(mu_);

  // Rounds done, and the time from push to done, summed over them.
  struct Cost {
    int64_t rounds = 0;
    absl::Duration latency_total;
  };
  Cost cost(int layer) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static constexpr int64_t kFetching = kInitialRound - 1;

  struct Entry {
    int64_t pushed = kFetching;
    int64_t done = kFetching;
    int64_t rounds = 0;                // Done, of those that were pushed.
    int borrowed = 0;                  // References to the caller's memory.
    absl::Span<const float> gradient;  // Pushed, or room for it.
    Buffer mean;                       // Of the round `done`, if elsewhere.
    absl::Time pushed_at;
    absl::Duration latency_total;
  };

  absl::Status CheckStep(const Entry& entry, int layer, int64_t step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  bool HasBegunLocked(int64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t NextStepLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // What the caller must hear before anything else.
  absl::Status Interruption() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::vector<std::string> layers_;
  mutable Mutex mu_;
  int64_t life_ ABSL_GUARDED_BY(mu_) = 0;
  bool went_back_ ABSL_GUARDED_BY(mu_) = false;  // The caller has not heard.
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  int64_t waits_heard_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<StepInfo> begun_ ABSL_GUARDED_BY(mu_);
  size_t layers_pushed_ ABSL_GUARDED_BY(mu_) = 0;            // Of that step.
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);          // By layer.
  int64_t skipped_ ABSL_GUARDED_BY(mu_) = kInitialRound;     // The last step.
  int64_t unfit_step_ ABSL_GUARDED_BY(mu_) = kInitialRound;  // The last one.
  LossScale loss_scale_ ABSL_GUARDED_BY(mu_);
  int lent_ ABSL_GUARDED_BY(mu_) = 0;  // References to the parameters.
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus

#endif  // NEREUS_WORKER_CLIENT_ROUND_TABLE_H_
