#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/membership.h"
#include "worker/public/client.h"

namespace nereus {

// A worker's account of its gatherings (Client::Gather): numbers the
// gatherings, and keeps the caller's value that has no answer yet. Pure.
class GatheringLedger {
 public:
  // Begins the next gathering. `step`: value of its GatheringId::step. Returns
  // the message for the coordinator. Returns nothing, and drops `value`, if the
  // last gathering still waits for its answer: the caller then goes on waiting
  // for that answer.
  std::optional<Gather> Begin(int64_t step, std::string value) {
    if (open_.has_value()) return std::nullopt;
    if (step != next_.step) next_ = {step};
    next_.went_back_in = step == kInitialRound ? went_back_in_ : 0;
    open_ = {next_, std::move(value)};
    return open_;
  }

  // Returns the message of the gathering that has no answer yet, so that it can
  // be sent again; nothing if there is none.
  std::optional<Gather> Unanswered() const {
    return answer_.has_value() ? std::nullopt : open_;
  }

  // Takes an answer of the coordinator. Ignores the answer to a gathering that
  // does not wait for one.
  void OnGathered(const Gathered& answer) {
    if (open_.has_value() && open_->id == answer.id) answer_ = answer;
  }
  bool is_answered() const { return answer_.has_value(); }

  // Returns the values of all workers, and ends the gathering. Errors:
  // kFailedPrecondition, with the error that the coordinator gave as its
  // answer. REQUIRES: is_answered().
  absl::StatusOr<std::vector<std::string>> Take() {
    const Gathered answer = *std::exchange(answer_, std::nullopt);
    open_.reset();
    ++next_.index;
    if (answer.error.empty()) return answer.values;
    return FailedPreconditionError(answer.error);
  }

  // Forgets all gatherings, because the worker goes back in `epoch`.
  void GoBack(uint64_t epoch) {
    *this = GatheringLedger();
    went_back_in_ = epoch;
  }
  // Epoch of the last GoBack; 0 before the first.
  uint64_t went_back_in() const { return went_back_in_; }

 private:
  uint64_t went_back_in_ = 0;       // See went_back_in().
  GatheringId next_;                // Number of the next gathering.
  std::optional<Gather> open_;      // The gathering that has begun.
  std::optional<Gathered> answer_;  // Its answer.
};

// Factor that a worker multiplies its loss by, so that gradients which it
// computes in fp16 do not become zero: the largest factor without overflow
// (Micikevicius et al., "Mixed Precision Training", section 3.2). The worker
// divides its gradients by this factor before it sends them, so the workers'
// factors may differ.
//
// An overflow in a worker's gradients skips the step on all workers and halves
// the scale of that worker. Many steps in a row without an overflow double the
// scale. The scale is a power of two, so a multiplication or division by it
// rounds nothing.
class LossScale {
 public:
  static constexpr float kFirst = 0x1p16f;  // Scale of the first step.
  static constexpr float kMin = 1.0f;       // Smallest scale.
  static constexpr float kMax = 0x1p24f;    // Largest scale.
  // Number of steps in a row without an overflow until the scale doubles.
  static constexpr int kStepsUntilDoubled = 2000;

  float value() const { return value_; }

  // Takes the outcome of a step. Ignores a step that it has taken before;
  // otherwise steps ascend. `skipped`: the job skips the step. `own`: gradients
  // of this worker are the reason for that.
  void OnStep(int64_t step, bool skipped, bool own) {
    if (step <= last_step_) return;
    last_step_ = step;
    if (skipped && !own) return;
    if (skipped) {
      value_ = value_ > kMin ? value_ / 2 : kMin;
      good_steps_ = 0;
    } else if (++good_steps_ == kStepsUntilDoubled) {
      value_ = value_ < kMax ? value_ * 2 : kMax;
      good_steps_ = 0;
    }
  }

  // Notes that the job has gone back: OnStep takes steps that are done again.
  void OnRestart() { last_step_ = -1; }

 private:
  float value_ = kFirst;    // The scale.
  int64_t last_step_ = -1;  // The last step that counted.
  int good_steps_ = 0;      // Steps without an overflow since the last change.
};

// Account, layer by layer, of the steps that the caller of a worker has begun
// and pushed, and of the rounds that the worker's machine has done. Decides
// which call the caller may make next, and which error an interrupted call
// returns. Pure; the client holds a lock around it (RoundTable), and the
// simulated caller uses it as it is.
//
// Without it two mistakes would go unseen: a layer that is pushed twice, or not
// at all, in one step would stop all workers of the job; and a caller that does
// not know of a return to a checkpoint would push gradients of an outdated
// model.
class StepLedger {
 public:
  // `layers`: the layers' names, for messages.
  explicit StepLedger(std::vector<std::string> layers);

  // Step that a call of the caller is about, and the life of the machine in
  // which the caller made the call. The driving thread drops a call of an
  // earlier life, because the job has gone back since.
  struct Call {
    int64_t step = kInitialRound;
    int64_t life = 0;
  };

  // ---- Events of the machine.

  // Begins the next life of the machine, in `epoch`: the layers' first values
  // are missing. Returns the number of the life, from 1. From the second life
  // on, the caller's calls fail with kOutOfRange until Acknowledge.
  int64_t Restart(uint64_t epoch);

  // Notes that the machine has let the caller begin a step.
  void Begin(const StepInfo& step);

  // Notes that the machine is done with `round` of a layer. Returns which kind
  // of round this is.
  enum class Done {
    kFirst,  // The layer's first values have arrived.
    kRound,  // The round of the caller's last push is done.
    kAgain,  // The round was done before: a new plan fetched the layer again.
  };
  Done Finish(int layer, int64_t round, bool skipped);

  // Notes that the membership is over, as a failure if `outcome` is an error.
  void End(const absl::Status& outcome);

  // Notes that the job cannot go on. The first failure counts.
  void Fail(const absl::Status& failure) { failure_.Update(failure); }

  // ---- Calls of the caller.

  // Notes that the caller knows that the job has gone back.
  void Acknowledge() { went_back_ = false; }

  // Returns the next step that the caller may begin: the step after the last
  // one that it began, or its first one. Errors: those of Interruption;
  // kFailedPrecondition, the caller leaves the job.
  absl::StatusOr<Call> StepToBegin() const;

  // Notes that the caller waits for the step of `call`. Returns false if there
  // is nothing to ask the machine: the caller asked for this step before and
  // gave up waiting, or `call` is of an earlier life. Until TakeBegun,
  // StepToBegin returns the same step.
  bool Ask(const Call& call);
  // Returns the step that has begun, and notes that the caller knows it.
  // REQUIRES: a step has begun.
  StepInfo TakeBegun();

  // Notes that the caller leaves the job: from now on it may neither begin a
  // step nor push. Returns the last step in which the caller pushed a layer;
  // if there is none, the round of the first values. Returns nothing if the
  // caller had begun to leave before. Errors: those of Interruption.
  absl::StatusOr<std::optional<Call>> BeginLeave();

  // Notes that the caller pushes `layer` in `step`. Returns the life of the
  // machine and the loss scale that the step began with.
  // Errors: kInvalidArgument, no such layer, a step that has not begun, or not
  // the layer's next one; kFailedPrecondition, the caller leaves the job; those
  // of Interruption.
  struct Pushed {
    int64_t life = 0;
    float loss_scale = 1.0f;
  };
  absl::StatusOr<Pushed> BeginPush(int layer, int64_t step);

  // Returns the account of the caller's gatherings.
  GatheringLedger& gathering() { return gathering_; }

  // Notes that one of this worker's gradients in `step` has a NaN or an
  // infinity.
  void NoteUnfit(int64_t step) { unfit_step_ = step; }

  // ---- State.

  // OK, or kInvalidArgument: there is no such layer.
  absl::Status CheckLayer(int layer) const {
    return CheckLayer(layer, layers_.size());
  }
  // OK, or the same error, for a model of `count` layers.
  static absl::Status CheckLayer(int layer, size_t count);
  // OK if the caller has pushed every layer of the step that it has begun or,
  // with `or_untouched`, none of them. Errors: kFailedPrecondition, with the
  // names of the layers that are not pushed.
  absl::Status CheckComplete(bool or_untouched) const;
  // OK if the caller may wait for `round` of a layer. Errors: kInvalidArgument,
  // no such layer, or a round that was not pushed; those of Interruption.
  absl::Status CheckAwaited(int layer, int64_t round) const;
  // Returns the error with which every call of the caller fails now: the job's
  // failure, or kOutOfRange if the job has gone back. Otherwise returns OK.
  absl::Status Interruption() const;

  // The last round of the layer that the caller has pushed; before its first
  // push, the round of the first values.
  int64_t pushed(int layer) const { return layers_[layer].pushed; }
  const std::string& name(int layer) const { return layers_[layer].name; }
  // True if `round` of the layer is done; true also if there is no such layer.
  bool IsDone(int layer, int64_t round) const;
  // True if a wait for the round can end: the round is done, was never pushed,
  // or will not be done in this life.
  bool IsAnswered(int layer, int64_t round) const;
  // True if the first values of every layer have arrived.
  bool HasFirstValues() const;
  // True if the machine has let the caller begin `step`, or will not in this
  // life.
  bool HasBegun(int64_t step) const;
  // Last step of which the caller has pushed every layer in this life;
  // kInitialRound if there is none.
  int64_t pushed_step() const { return pushed_step_; }
  // Returns the step that the caller has begun and not pushed all layers of, if
  // nothing interrupts it: the caller computes, unless it waits in a call.
  std::optional<int64_t> OpenStep() const {
    if (!begun_.has_value() || pushed_step_ >= begun_->step || leaving_ ||
        is_interrupted()) {
      return std::nullopt;
    }
    return begun_->step;
  }
  // True if every round that the caller has pushed is done.
  bool IsIdle() const;
  // True if step `step` is the last skipped one.
  bool Skipped(int64_t step) const { return skipped_step_ == step; }
  bool is_interrupted() const { return went_back_ || !failure_.ok(); }
  bool is_over() const { return over_; }
  const absl::Status& failure() const { return failure_; }
  const std::optional<StepInfo>& begun() const { return begun_; }
  // The loss scale of the next step that begins.
  float loss_scale() const { return loss_scale_.value(); }
  // The last round that is done for all layers; kInitialRound if there is none.
  int64_t round() const;
  // The step after the last one that the caller has begun, or its first one.
  int64_t next_step() const;

 private:
  // Value of Layer::done until the layer's first values have arrived.
  static constexpr int64_t kFetching = kInitialRound - 1;

  struct Layer {
    std::string name;
    int64_t pushed = kFetching;  // The last round that the caller pushed.
    int64_t done = kFetching;    // The last round that the machine has done.
  };

  // OK if the caller may push the layer in `step`. Errors: kInvalidArgument.
  absl::Status CheckNext(const Layer& layer, int64_t step) const;

  std::vector<Layer> layers_;
  int64_t life_ = 0;        // Number of the machine's life.
  bool went_back_ = false;  // True if Acknowledge has to come in this life.
  bool over_ = false;       // True if the membership has ended.
  absl::Status failure_;    // The first failure of the job.
  bool leaving_ = false;    // True if the caller leaves the job.
  std::optional<StepInfo> begun_;         // The last step begun.
  std::optional<int64_t> asked_;          // Step that the caller asked for.
  size_t pushed_count_ = 0;               // Layers pushed in step `begun_`.
  int64_t pushed_step_ = kInitialRound;   // See pushed_step().
  int64_t skipped_step_ = kInitialRound;  // The last step that was skipped.
  int64_t unfit_step_ = kInitialRound;    // The last step of NoteUnfit.
  GatheringLedger gathering_;             // The caller's gatherings.
  LossScale loss_scale_;                  // Follows the steps' outcomes.
};

}  // namespace nereus
