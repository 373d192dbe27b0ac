// The part of a client that runs on the caller's threads. Each call checks its
// arguments and the ledger, under the RoundTable's lock, and posts the work to
// the machine (WorkerProcess). A call that waits can drive the machine
// meanwhile.
//
//   BeginStep --> Push or PushFactors of each layer --> Wait of each layer
//       '------ kOutOfRange from a push or a Wait: the job went back -----'
//
// A call that waits ends when its outcome is in the ledger, when the job fails,
// or when the job goes back.

#include "worker/client/host_client.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/compute/vectors.h"
#include "common/protocol/job_spec.h"
#include "common/tensor/arrival.h"
#include "worker/client/layer_bindings.h"
#include "worker/client/round_table.h"
#include "worker/client/turn_guard.h"
#include "worker/client/worker_process.h"

namespace nereus {

// Returns the first value that is NaN or infinite. The index in the result is
// below 0 if all values are finite. `arrival`: null if the values are in
// memory. Otherwise the values are still being copied from a device, and the
// arrival searches them there. If the arrival cannot search, this function
// waits for the values and searches them itself. Errors: the values will never
// arrive.
absl::StatusOr<BadValue> FindTooLarge(absl::Span<const float> values,
                                      Arrival* arrival);

namespace {

// Longest time to wait for two events that come soon unless a process hangs:
// closed connections give back their buffers, and the other workers hear of a
// failure.
constexpr absl::Duration kFlushTimeout = absl::Seconds(5);

class HostClientImpl final : public HostClient {
  // Calls `use` with the ledger, under its lock.
  template <typename F>
  auto Ledger(F&& use) const {
    return std::as_const(*rounds_).Use(std::forward<F>(use));
  }

 public:
  HostClientImpl(HostClientOptions options,
                 std::vector<HostLayerBinding> layers,
                 std::vector<LayerSpec> specs, std::unique_ptr<TurnGuard> turns)
      : options_(std::move(options)),
        layers_(std::move(layers)),
        specs_(std::move(specs)),
        rounds_(std::make_shared<RoundTable>(NamesOf(specs_))),
        turns_(std::move(turns)),
        process_(std::make_unique<WorkerProcess>(options_, layers_, specs_,
                                                 rounds_, turns_.get())) {}
  ~HostClientImpl() override;

  // Begins to join the job.
  absl::Status Start() { return process_->Join(specs_); }

  absl::Status AwaitJoined(absl::Duration timeout, Stream) override;
  const JobTraits& traits() const override { return traits_; }
  absl::StatusOr<StepInfo> BeginStep(absl::Duration timeout, Stream) override;
  absl::Status Push(int layer, int64_t step, absl::Span<float> gradient,
                    Stream) override {
    return PushArriving(layer, step, gradient, nullptr, {});
  }
  absl::Status PushArriving(int layer, int64_t step, absl::Span<float> gradient,
                            const std::shared_ptr<Arrival>& arrival,
                            absl::Span<float> mean) override;
  absl::Status PushFactors(int layer, int64_t step, const Factors& factors,
                           absl::Span<float> gradient, Stream) override {
    return PushArrivingFactors(layer, step, factors, gradient, nullptr);
  }
  absl::Status PushArrivingFactors(
      int layer, int64_t step, const Factors& factors,
      absl::Span<float> gradient,
      const std::shared_ptr<Arrival>& arrival) override;
  absl::Status Wait(int layer, int64_t step, absl::Duration timeout,
                    Stream) override {
    return WaitSince(SteadyNow(), layer, step, timeout);
  }
  absl::Status WaitForward(int layer, absl::Duration timeout, Stream) override;
  absl::Status WaitAll(int64_t step, absl::Duration timeout, Stream) override;
  absl::Status Hurry(int layer) override;
  void EndTurn() override { NoteTurn(/*waits=*/true); }
  absl::StatusOr<absl::Span<const float>> Mean(int layer) const override;
  bool Skipped(int64_t step) const override {
    return Ledger(
        [&](const StepLedger& ledger) { return ledger.Skipped(step); });
  }
  absl::Status SetFactorRows(absl::Span<const int64_t> rows) override;
  absl::StatusOr<int64_t> factor_rows(int layer) const override;
  int64_t RowsForFactors(int layer) const override;
  bool takes_bfloat16(int layer) const override;
  absl::Status Checkpoint() override;
  absl::StatusOr<std::vector<std::string>> Gather(
      absl::string_view value, absl::Duration timeout) const override;
  absl::Status SetDeviceMemory(int64_t resident_bytes,
                               int64_t turn_bytes) override;
  ClientReport Report() const override { return process_->Report(); }
  absl::Status Interruption() const override {
    return Ledger(
        [](const StepLedger& ledger) { return ledger.Interruption(); });
  }
  absl::Status Abort(absl::string_view reason) override {
    NEREUS_TRY(failure());
    return FailJob(std::string(reason));
  }

 private:
  absl::Status LeaveJob(bool early, absl::Duration timeout, Stream) override;
  absl::Status TakeTurn(absl::Duration timeout) override;
  void GiveTurn() override {
    if (turns_ != nullptr) turns_->SetOutside(*rounds_, /*outside=*/false);
  }
  absl::Status CheckLayer(int layer) const {
    return StepLedger::CheckLayer(layer, specs_.size());
  }
  absl::Status failure() const {
    return Ledger([](const StepLedger& ledger) { return ledger.failure(); });
  }
  const JobOptions& job_options() const { return process_->job().options; }

  // Turns at a shared device. NoteTurn: the caller has pushed a layer, or waits
  // in a call, and gives the turn back if it does not compute any more.
  // AwaitTurn: waits for the turn, if the caller computes. Does nothing if the
  // device is not shared.
  void NoteTurn(bool waits) const {
    if (turns_ != nullptr) turns_->Note(*rounds_, waits);
  }
  absl::Status AwaitTurn(absl::Time until) const;

  // True if the caller has queued the rest of its open step on a device: the
  // turn ends there, without another call.
  bool EndsTurnByItself() const;

  // Wait as Wait does, for a call that began at `from` and may take `timeout`
  // in total. AwaitRound does not take the turn again that it has given back.
  absl::Status AwaitRound(absl::Time from, int layer, int64_t step,
                          absl::Duration timeout);
  absl::Status WaitSince(absl::Time from, int layer, int64_t step,
                         absl::Duration timeout);
  // Waits until all layers have the job's values. If the job goes back
  // meanwhile, waits for the new values. Errors: kDeadlineExceeded at `until`.
  absl::Status AwaitValues(absl::Time until);
  // True if the values may be used: all are finite, or the job ignores NaNs.
  // False if the job must skip the step because of a NaN. If the job ignores
  // NaNs, returns at once. Otherwise waits until `arrival` has searched the
  // values or, if it cannot, until all values have arrived. Errors: a NaN ends
  // the job, or the values will never arrive.
  absl::StatusOr<bool> IsFit(int layer, int64_t step, absl::string_view what,
                             absl::Span<const float> values, Arrival* arrival);
  // Notes a push in the ledger and in the meter, and borrows its memory.
  absl::StatusOr<RoundTable::Push> BeginPush(
      int layer, int64_t step, absl::Span<const float> gradient,
      absl::Span<const RoundTable::Lent> lent);
  // Returns the error that a call returns which does not fit the plan. If the
  // job has gone back, the plan is another one than that of the caller's step:
  // that error comes first.
  absl::Status RefusedBy(absl::Status check) const {
    if (!check.ok()) NEREUS_TRY(Interruption());
    return check;
  }
  // Ends the job for all workers. Returns `reason` as an error once the
  // coordinator has confirmed the end, or after twice kFlushTimeout.
  absl::Status FailJob(const std::string& reason);

  const HostClientOptions options_;
  const std::vector<HostLayerBinding> layers_;  // The caller's memory.
  const std::vector<LayerSpec> specs_;          // Specs of layers_.
  JobTraits traits_;                            // Constant after AwaitJoined.
  // Shared with the buffers that the table counts.
  const std::shared_ptr<RoundTable> rounds_;
  // Null: the worker has its device for itself.
  const std::unique_ptr<TurnGuard> turns_;
  // True if a step has begun, and BeginStep waits for its turn, or has timed
  // out meanwhile.
  std::atomic<bool> awaits_turn_ = false;
  std::unique_ptr<WorkerProcess> process_;  // The side of the driving thread.
  SkipNotes skips_;  // Lines about gradients that are not finite.
};

// Waits until no connection reads the caller's memory, because the caller may
// free that memory afterwards.
HostClientImpl::~HostClientImpl() {
  NoteTurn(/*waits=*/true);
  process_.reset();
  if (!rounds_->AwaitReturned(kFlushTimeout)) {
    NEREUS_LOG(Error) << "the caller's memory is still in use after closing "
                         "all connections";
  }
}

absl::Status HostClientImpl::AwaitJoined(absl::Duration timeout,
                                         Stream /*stream*/) {
  NEREUS_TRY(AwaitValues(SteadyNow() + timeout));
  const Job& job = process_->job();
  traits_.rank = process_->rank();
  traits_.optimizer = job.options.optimizer;
  traits_.rate_schedule = job.options.rate_schedule;
  traits_.updates_parameters =
      job.options.optimizer_place == OptimizerPlace::kWorker;
  traits_.may_skip = job.votes();
  traits_.sparse = job.options.sparsity.share > 0;
  process_->SetReady();
  LogJoined(options_.client, job.options, layers_.front().layer.state.empty());
  return absl::OkStatus();
}

absl::Status HostClientImpl::AwaitValues(absl::Time until) {
  while (true) {
    const absl::Status fetched = rounds_->AwaitFirstValues(until);
    if (!absl::IsOutOfRange(fetched)) return fetched;
    // The job has gone back. The caller is in this call, so it does not use the
    // values, and the machine may write them.
    NEREUS_TRY(rounds_->Acknowledge(until));
    process_->FreeValues();
  }
}

absl::StatusOr<StepInfo> HostClientImpl::BeginStep(absl::Duration timeout,
                                                   Stream /*stream*/) {
  const absl::Time from = SteadyNow();
  const absl::Time until = from + timeout;
  if (!awaits_turn_) {
    NEREUS_TRY(Ledger([](const StepLedger& ledger) {
      return ledger.CheckComplete(/*or_untouched=*/false);
    }));
    NoteTurn(/*waits=*/true);
  }
  // If the job goes back meanwhile, another step is next: so try again.
  while (true) {
    if (awaits_turn_) {
      NEREUS_TRY(AwaitTurn(until));
      awaits_turn_ = false;
      // Under one lock: the job may go back at any time.
      auto begun = Ledger([](const StepLedger& l) -> absl::StatusOr<StepInfo> {
        NEREUS_TRY(l.Interruption());
        return *l.begun();
      });
      if (!absl::IsOutOfRange(begun.status())) return begun;
    }
    NEREUS_TRY(AwaitValues(until));
    const auto next =
        Ledger([](const StepLedger& ledger) { return ledger.StepToBegin(); });
    if (absl::IsOutOfRange(next.status())) continue;
    NEREUS_TRY(next.status());
    const bool is_new =
        rounds_->Use([&](StepLedger& ledger) { return ledger.Ask(*next); });
    if (is_new) process_->BeginStep(*next);
    process_->DriveUntil(
        [&] {
          return Ledger([&](const StepLedger& ledger) {
            return ledger.HasBegun(next->step);
          });
        },
        until);
    absl::StatusOr<StepInfo> begun = rounds_->AwaitBegin(next->step, until);
    if (absl::IsOutOfRange(begun.status())) continue;
    if (begun.ok()) {
      process_->meter().OnBegin(begun->step, from);
    } else {
      process_->meter().OnOtherWait(from);
    }
    if (!begun.ok() || turns_ == nullptr) return begun;
    awaits_turn_ = true;
  }
}

absl::Status HostClientImpl::TakeTurn(absl::Duration timeout) {
  if (turns_ == nullptr) return absl::OkStatus();
  turns_->SetOutside(*rounds_, /*outside=*/true);
  const absl::Status taken = AwaitTurn(SteadyNow() + timeout);
  if (!taken.ok()) GiveTurn();
  return taken;
}

absl::Status HostClientImpl::SetDeviceMemory(int64_t resident_bytes,
                                             int64_t turn_bytes) {
  NEREUS_TRY(CheckDeviceBytes("resident_bytes", resident_bytes));
  NEREUS_TRY(CheckDeviceBytes("turn_bytes", turn_bytes));
  if (turns_ != nullptr) turns_->SetMemory(resident_bytes, turn_bytes);
  return absl::OkStatus();
}

absl::Status HostClientImpl::AwaitTurn(absl::Time until) const {
  if (turns_ == nullptr || turns_->MayCompute(*rounds_)) {
    return absl::OkStatus();
  }
  const absl::Time from = SteadyNow();
  const absl::Status status = turns_->Await(*rounds_, until);
  process_->meter().OnTurn(from);
  return status;
}

absl::StatusOr<bool> HostClientImpl::IsFit(int layer, int64_t step,
                                           absl::string_view what,
                                           absl::Span<const float> values,
                                           Arrival* arrival) {
  const NanPolicy policy = job_options().nan;
  if (policy == NanPolicy::kIgnore) return true;
  const std::string name =
      absl::StrCat("layer ", specs_[layer].name, ", step ", step, ": ", what);
  const absl::StatusOr<BadValue> found = FindTooLarge(values, arrival);
  if (!found.ok()) {
    return FailJob(
        absl::StrCat(name, " cannot be read: ", found.status().message()));
  }
  if (found->index < 0) return true;
  // A step that the job has gone back from fails nothing.
  NEREUS_TRY(Interruption());
  const std::string reason = absl::StrCat(
      name, " has ", found->value, " at element ", found->index, " of ",
      values.size(),
      std::isfinite(found->value) ? ": the sum of all workers could overflow"
                                  : "");
  if (policy != NanPolicy::kSkip) return FailJob(reason);
  skips_.Log(step, specs_[layer].name, reason);
  // Waits for the rest of the copy: the machine may write zeros over the
  // values, and the copy must not write there afterwards.
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  if (arrival != nullptr) arrival->Await(bytes).IgnoreError();
  return false;
}

absl::Status HostClientImpl::FailJob(const std::string& reason) {
  NoteTurn(/*waits=*/true);
  process_->Fail(reason);
  // Waits until the other workers have heard the reason, because the caller may
  // destroy the client as soon as this function returns.
  process_->DriveUntil([this] { return !failure().ok(); },
                       SteadyNow() + kFlushTimeout);
  rounds_->AwaitOver(absl::InfiniteDuration(), SteadyNow() + kFlushTimeout)
      .IgnoreError();
  return FailedPreconditionError(reason);
}

absl::StatusOr<RoundTable::Push> HostClientImpl::BeginPush(
    int layer, int64_t step, absl::Span<const float> gradient,
    absl::Span<const RoundTable::Lent> lent) {
  // Another job may have passed this worker, because it stood still. Pushes of
  // a device do not wait here: the device computes on in any case.
  if (options_.has_queued_all == nullptr) {
    NEREUS_TRY(AwaitTurn(absl::InfiniteFuture()));
  }
  auto push = rounds_->BeginPush(layer, step, SteadyNow(), gradient, lent);
  if (push.ok()) process_->meter().OnPush(layer);
  NoteTurn(/*waits=*/false);
  return push;
}

absl::Status HostClientImpl::PushArriving(
    int layer, int64_t step, absl::Span<float> gradient,
    const std::shared_ptr<Arrival>& arrival, absl::Span<float> mean) {
  NEREUS_TRY(CheckLayer(layer));
  const LayerSpec& spec = specs_[layer];
  NEREUS_TRY(
      CheckLength(spec, "the gradient", gradient.size(), spec.parameters));
  const bool by_factors = process_->sends_factors(layer);
  if (by_factors) NEREUS_TRY(RefusedBy(CheckFitsFrames(spec)));
  bool is_fit = true;
  // In other jobs, servers and rings check the values that they add.
  if (traits_.may_skip || traits_.sparse || by_factors) {
    is_fit =
        NEREUS_TRY(IsFit(layer, step, "the gradient", gradient, arrival.get()));
  }
  if (!is_fit) rounds_->NoteUnfit(step);
  auto [pushed, buffers] = NEREUS_TRY(
      BeginPush(layer, step, gradient, {{gradient, arrival}, {mean}}));
  process_->Push(layer, step, pushed, is_fit, std::move(buffers[0]),
                 std::move(buffers[1]));
  return absl::OkStatus();
}

absl::Status HostClientImpl::PushArrivingFactors(
    int layer, int64_t step, const Factors& factors, absl::Span<float> gradient,
    const std::shared_ptr<Arrival>& arrival) {
  NEREUS_TRY(CheckLayer(layer));
  LayerSpec spec = specs_[layer];
  spec.rows = RowsForFactors(layer);
  NEREUS_TRY(RefusedBy(
      CheckFactors(spec, factors, gradient, traits_.updates_parameters)));
  const bool output_is_fit = NEREUS_TRY(
      IsFit(layer, step, "the output gradient", factors.output_gradient,
            /*arrival=*/nullptr));
  const bool input_is_fit = NEREUS_TRY(
      IsFit(layer, step, "the input", factors.input, /*arrival=*/nullptr));
  if (!output_is_fit || !input_is_fit) rounds_->NoteUnfit(step);
  auto [pushed, buffers] =
      NEREUS_TRY(BeginPush(layer, step, gradient,
                           {{factors.output_gradient, arrival},
                            {factors.input, arrival},
                            {gradient}}));
  process_->PushFactors(
      layer, step, pushed, output_is_fit && input_is_fit,
      {std::move(buffers[0]), std::move(buffers[1]), std::move(buffers[2])});
  return absl::OkStatus();
}

absl::Status HostClientImpl::WaitForward(int layer, absl::Duration timeout,
                                         Stream stream) {
  NEREUS_TRY(CheckLayer(layer));
  const int64_t step =
      Ledger([&](const StepLedger& ledger) { return ledger.pushed(layer); });
  return Wait(layer, step, timeout, stream);
}

absl::Status HostClientImpl::Hurry(int layer) {
  NEREUS_TRY(CheckLayer(layer));
  NEREUS_TRY(Interruption());
  process_->Hurry(layer);
  return absl::OkStatus();
}

absl::Status HostClientImpl::WaitSince(absl::Time from, int layer, int64_t step,
                                       absl::Duration timeout) {
  NEREUS_TRY(AwaitRound(from, layer, step, timeout));
  return AwaitTurn(from + timeout);
}

bool HostClientImpl::EndsTurnByItself() const {
  if (options_.has_queued_all == nullptr) return false;
  const std::optional<int64_t> open =
      Ledger([](const StepLedger& ledger) { return ledger.OpenStep(); });
  return open.has_value() && options_.has_queued_all(*open);
}

absl::Status HostClientImpl::AwaitRound(absl::Time from, int layer,
                                        int64_t step, absl::Duration timeout) {
  const absl::Time began_at = SteadyNow();
  const absl::Duration round_timeout = options_.client.round_timeout;
  if (began_at + round_timeout < from + timeout) {
    from = began_at;
    timeout = round_timeout;
  }
  const bool may_be_held_back = Ledger([&](const StepLedger& ledger) {
    return ledger.pushed_step() < step && !ledger.IsDone(layer, step);
  });
  if (may_be_held_back) NEREUS_TRY(Hurry(layer));
  const auto is_answered = [&] {
    return Ledger([&](const StepLedger& ledger) {
      return ledger.IsAnswered(layer, step);
    });
  };
  // A worker that waits for a frame has no turn. A caller that only looks, with
  // no time to wait, keeps it.
  if (turns_ != nullptr && timeout > absl::ZeroDuration() && !is_answered() &&
      !EndsTurnByItself()) {
    NoteTurn(/*waits=*/true);
  }
  process_->DriveUntil(is_answered, from + timeout);
  const absl::Status status = rounds_->Await(layer, step, timeout, from);
  const bool is_late = absl::IsDeadlineExceeded(status);
  // Tells the meter of the wait, so that it does not count as computing.
  if (status.ok() || is_late) process_->meter().OnWait(layer, began_at);
  if (!is_late) return status;
  return DeadlineExceededError(status.message(), "; missing: ",
                               process_->DescribeMissing(layer, timeout));
}

absl::Status HostClientImpl::WaitAll(int64_t step, absl::Duration timeout,
                                     Stream /*stream*/) {
  const absl::Time from = SteadyNow();
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    NEREUS_TRY(WaitSince(from, static_cast<int>(layer), step, timeout));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const float>> HostClientImpl::Mean(int layer) const {
  NEREUS_TRY(CheckLayer(layer));
  if (!traits_.updates_parameters) {
    return FailedPreconditionError(
        "the job updates the parameters (--optimizer=server), so there is no "
        "mean gradient for the caller");
  }
  const absl::Span<const float> mean = rounds_->Mean(layer);
  if (!mean.empty()) return mean;
  return FailedPreconditionError(
      "layer ", specs_[layer].name,
      " has no mean gradient: push it, and wait for it, in this step");
}

absl::Status HostClientImpl::SetFactorRows(absl::Span<const int64_t> rows) {
  FactorRows report{{rows.begin(), rows.end()}};
  NEREUS_TRY(CheckFactorRows(report, specs_));
  NEREUS_TRY(failure());
  process_->SetFactorRows(std::move(report));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> HostClientImpl::factor_rows(int layer) const {
  NEREUS_TRY(CheckLayer(layer));
  return process_->sends_factors(layer) ? process_->rows(layer) : 0;
}

// The caller may know its rows although the job has lost the factors: then this
// client multiplies them.
int64_t HostClientImpl::RowsForFactors(int layer) const {
  const int64_t rows = process_->rows(layer);
  const int64_t own = specs_[layer].rows;
  return rows > 0 || own == kRowsNotKnown ? rows : own;
}

bool HostClientImpl::takes_bfloat16(int layer) const {
  if (!CheckLayer(layer).ok() || traits_.may_skip || traits_.sparse ||
      job_options().scale_loss) {
    return false;
  }
  const std::shared_ptr<const EpochStart> epoch = process_->epoch();
  const Route route = epoch->job->routes[layer];
  // A carrier adds the float32 values of its mates, and the sum is rounded to
  // bfloat16 only when it leaves the host.
  const bool is_alone =
      epoch->job->LineupOf(kStepMax).IsAlone(epoch->self.rank);
  return route.scheme == Scheme::kServer && route.wire == WireType::kBfloat16 &&
         is_alone;
}

absl::Status HostClientImpl::Checkpoint() {
  NEREUS_TRY(failure());
  if (!job_options().has_checkpoints) {
    return FailedPreconditionError(
        "job ", options_.client.job,
        " has no folder for checkpoints: start its servers with "
        "--checkpoint-dir");
  }
  process_->WantCheckpoint();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> HostClientImpl::Gather(
    absl::string_view value, absl::Duration timeout) const {
  const absl::Time until = SteadyNow() + timeout;
  const auto bytes = static_cast<int64_t>(value.size());
  if (bytes > kGatheredBytesMax) {
    return InvalidArgumentError("the value has ", bytes,
                                " bytes, must be at most ", kGatheredBytesMax);
  }
  if (job_options().rounds.quorum != Quorum::kAll) {
    return FailedPreconditionError(
        "workers cannot gather in a job with --quorum=",
        QuorumName(job_options().rounds.quorum),
        ": they may be in different steps");
  }
  const std::optional<nereus::Gather> begun =
      NEREUS_TRY(rounds_->BeginGathering(std::string(value)));
  // Empty if an earlier call, which timed out, has begun this gathering.
  if (begun.has_value()) process_->Gather();
  const absl::Time from = SteadyNow();
  NoteTurn(/*waits=*/true);
  auto values = rounds_->AwaitGathered(until);
  process_->meter().OnOtherWait(from);
  // The values cannot be had again, so an error waits for the next call.
  if (values.ok()) AwaitTurn(until).IgnoreError();
  return values;
}

absl::Status HostClientImpl::LeaveJob(bool early, absl::Duration timeout,
                                      Stream /*stream*/) {
  const absl::Time from = SteadyNow();
  NEREUS_TRY(failure());
  NEREUS_TRY(Ledger([](const StepLedger& ledger) {
    return ledger.CheckComplete(/*or_untouched=*/true);
  }));
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const int index = static_cast<int>(layer);
    const int64_t step =
        Ledger([&](const StepLedger& ledger) { return ledger.pushed(index); });
    NEREUS_TRY(AwaitRound(from, index, step, timeout));
  }
  const std::optional<StepLedger::Call> last =
      NEREUS_TRY(rounds_->BeginLeave(SteadyNow()));
  // Empty if an earlier call, which timed out, has already asked to leave.
  if (last.has_value()) process_->Leave(*last, early);
  NoteTurn(/*waits=*/true);  // A step that has begun is not computed any more.
  // Other workers may still need frames of this worker's last round. So the
  // connections stay open until the coordinator ends the membership.
  const absl::Duration patience = options_.client.round_timeout;
  const absl::Status over = rounds_->AwaitOver(patience, from + timeout);
  // If the job has an error, returns it rather than a timeout of this call.
  if (!over.ok()) NEREUS_TRY(Interruption());
  if (absl::IsDeadlineExceeded(over)) {
    return DeadlineExceededError("this worker leaves the job, and other ",
                                 "workers are not done after ",
                                 absl::FormatDuration(timeout));
  }
  rounds_->Use([](StepLedger& ledger) {
    ledger.Fail(FailedPreconditionError("this worker has left the job"));
  });
  process_->Wake();
  if (over.ok()) return absl::OkStatus();
  return UnavailableError(
      "this worker left the job, but other workers did not, and the "
      "coordinator was silent for ",
      absl::FormatDuration(patience));
}

// Returns the turns at the shared device; null: the device is not shared.
absl::StatusOr<std::unique_ptr<TurnGuard>> OpenTurns(
    const ShareOptions& options, const std::string& job) {
  if (options.folder.empty()) return nullptr;
  auto turns = TurnGuard::Open(options, job);
  if (turns.ok() || !options.is_optional) return turns;
  NEREUS_LOG(Warning) << "trains without turns at a shared device: "
                      << turns.status().message();
  return nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostClient>> HostClient::Join(
    HostClientOptions options, std::vector<HostLayerBinding> layers) {
  NEREUS_TRY(options.client.Validate());
  std::vector<LayerBinding> bindings;
  for (const HostLayerBinding& layer : layers) bindings.push_back(layer.layer);
  std::vector<LayerSpec> specs = NEREUS_TRY(CheckedSpecsIn(bindings));
  NEREUS_TRY(CheckState(bindings, options.client.optimizer));
  std::unique_ptr<TurnGuard> turns =
      NEREUS_TRY(OpenTurns(options.client.share, options.client.job));
  auto client =
      std::make_unique<HostClientImpl>(std::move(options), std::move(layers),
                                       std::move(specs), std::move(turns));
  NEREUS_TRY(client->Start());
  return client;
}

absl::StatusOr<std::unique_ptr<HostClient>> HostClient::Connect(
    HostClientOptions options, std::vector<HostLayerBinding> layers) {
  auto client = NEREUS_TRY(Join(std::move(options), std::move(layers)));
  NEREUS_TRY(client->AwaitJoined(absl::InfiniteDuration()));
  return client;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Join(
    const ClientOptions& options, std::vector<LayerBinding> layers) {
  std::vector<HostLayerBinding> bindings;
  for (LayerBinding& layer : layers) bindings.push_back({std::move(layer)});
  return HostClient::Join({.client = options}, std::move(bindings));
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(
    const ClientOptions& options, std::vector<LayerBinding> layers) {
  auto client = NEREUS_TRY(Join(options, std::move(layers)));
  NEREUS_TRY(client->AwaitJoined(absl::InfiniteDuration()));
  return client;
}

absl::StatusOr<BadValue> FindTooLarge(absl::Span<const float> values,
                                      Arrival* arrival) {
  if (arrival != nullptr) {
    absl::StatusOr<BadValue> found = arrival->FindTooLarge();
    if (!absl::IsUnimplemented(found.status())) return found;
    // The arrival cannot search the values, so this function does.
    NEREUS_TRY(
        arrival->Await(static_cast<int64_t>(values.size() * sizeof(float))));
  }
  const int64_t index = FindTooLarge(values.data(), values.size());
  return index < 0 ? BadValue() : BadValue{index, values[index]};
}

void LogJoined(const ClientOptions& client, const JobOptions& job,
               bool lacks_state) {
  NEREUS_LOG(Info, {LogEvent::kMemberJoined})
      << "joined job " << client.job << ": "
      << DescribeJobSpec(SpecOf(job), /*told=*/true);
  // Momentum and Adam keep state, and a worker that joins needs a copy of it.
  const bool has_state =
      client.optimizer_has_state &&
      (HasMoments(job.optimizer.rule) || job.optimizer.momentum > 0);
  if (job.optimizer_place != OptimizerPlace::kWorker || !lacks_state ||
      !has_state) {
    return;
  }
  NEREUS_LOG(Warning)
      << "this worker runs the job's optimizer and has no LayerBinding::state: "
         "if its optimizer keeps any ("
      << DescribeOptimizer(job.optimizer)
      << "), a worker that joins later begins with other state, and the "
         "replicas differ from then on. If it keeps none, set "
         "ClientOptions::optimizer_has_state to false";
}

void SkipNotes::Log(int64_t step, const std::string& layer,
                    const std::string& reason) {
  std::optional<absl::Duration> lasts;
  {
    MutexLock lock(&mu_);
    lasts = repeats_.Note(layer, SteadyNow());
  }
  if (!lasts.has_value()) return;
  NEREUS_LOG(Warning, {LogEvent::kSkippedStep, step, layer})
      << reason << ": all workers skip the step" << LastsText(*lasts);
}

}  // namespace nereus
