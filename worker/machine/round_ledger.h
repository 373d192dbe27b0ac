#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/protocol/outbox.h"
#include "common/protocol/verdicts.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Account of one layer's rounds on one worker: the last round that the caller
// has pushed, the last round that is done, and if the driver has been told of
// it. One round is open at a time.
//
//   fetching --OnFetched--> idle --Push--> open, unsent --Send--> open, sent
//                             ^                                       |
//                             '------------ Finish -------------------'
//
// With NanPolicy::kSkip a round that is done is reported only once the verdict
// on its step is known: the caller must not act on a step that may be skipped.
class RoundLedger {
 public:
  // `layer`: not owned; must outlive this.
  explicit RoundLedger(const WorkerLayer& layer);

  // The last round that is done; below kInitialRound while fetching.
  int64_t done_round() const { return done_round_; }
  // The last round that the caller has pushed; below kInitialRound while
  // fetching.
  int64_t pushed_round() const { return pushed_round_; }
  // The round that is open, or that the next push opens.
  int64_t next_round() const;
  // Number of contributions in the last round that is done; 0 if the values of
  // that round were fetched.
  int contributors() const { return contributors_; }

  // True until the layer's first values have arrived.
  bool fetching() const { return done_round_ < kInitialRound; }
  // True if the caller has pushed a round that is not done.
  bool is_open() const { return pushed_round_ > done_round_; }
  // True if the contribution to the open round has not been sent.
  bool is_unsent() const { return is_unsent_; }
  // True if the contribution to the open round has been sent.
  bool is_sent() const { return is_open() && !is_unsent_; }
  // True if the result of the open round is due: this worker has asked for it,
  // or the job is not decoupled, and results come unasked.
  bool is_requested() const {
    return !layer_.job->decoupled() || requested_round_ > done_round_;
  }
  // True if the driver has been told of every round that is done.
  bool is_reported() const { return is_reported_; }
  // True if the step of `round` is skipped; nullopt if the verdict on it is not
  // known.
  std::optional<bool> Skipped(int64_t round) const;

  // OK if the caller may push `round`. Errors: kInvalidArgument, the round is
  // not the one after the last that is done.
  absl::Status CheckPush(int64_t round) const;

  // Notes that the caller has pushed `round`.
  void Push(int64_t round);
  // Notes that the contribution is sent. Returns false if it was sent before.
  bool Send();
  // Notes that this worker asks for the result of the open round.
  void Request() { requested_round_ = done_round_ + 1; }
  // Notes that the open round is done. `mean`: see LayerDone::mean.
  void Finish(int contributors, Buffer mean);
  // Notes that the first values have arrived, as of `round`.
  void OnFetched(int64_t round);
  // Continues the account of the layer's last syncer: `done_round` is done, and
  // no round is open.
  void Adopt(int64_t done_round);
  // Continues with contributors() of the layer's last syncer.
  void AdoptContributors(int contributors) { contributors_ = contributors; }
  // Begins again: the first values are to come.
  void Restart();
  // Notes verdicts on steps.
  void AddVerdicts(absl::Span<const StepVerdict> verdicts) {
    verdicts_.Add(verdicts);
  }
  // Tells the driver of the last round that is done, unless the driver has been
  // told or the verdict on the step is not known.
  void ReportIfSettled(Outbox& out);

 private:
  const WorkerLayer& layer_;                     // The layer; not owned.
  int64_t pushed_round_ = kInitialRound - 1;     // See pushed_round().
  int64_t done_round_ = kInitialRound - 1;       // See done_round().
  int64_t requested_round_ = kInitialRound - 1;  // Last round asked for.
  bool is_unsent_ = false;                       // See is_unsent().
  int contributors_ = 0;                         // See contributors().
  Verdicts verdicts_;        // Verdicts that this worker has heard.
  bool is_reported_ = true;  // See is_reported().
  Buffer mean_;              // Mean gradient of the unreported round.
};

}  // namespace nereus
