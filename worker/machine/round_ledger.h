#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/outbox.h"
#include "common/protocol/verdicts.h"

namespace nereus {

// Account of one layer's rounds on one worker: the last round that the caller
// has pushed, the last round that is done, and if the driver has been told of
// it. One round is open at a time. The WorkerMachine has one for each layer;
// the layer's Syncer writes it, and the SendPlan and the layer's exchange read
// it.
//
//   fetching --OnFetched--> idle --Push--> open, unsent --Send--> open, sent
//                             ^                                       |
//                             '------------ Finish -------------------'
//
// With NanPolicy::kSkip a round that is done is reported only once the verdict
// on its step is known: the caller must not act on a step that may be skipped.
class RoundLedger {
 public:
  // `layer`: index in job->layers. `rank`: rank of this worker. `verdicts`:
  // those that this worker knows; not owned, must outlive this.
  RoundLedger(JobPtr job, int layer, int rank, const Verdicts& verdicts)
      : job_(std::move(job)),
        layer_(layer),
        rank_(rank),
        verdicts_(&verdicts) {}

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
  // True if the driver has been told of every round that is done.
  bool is_reported() const { return is_reported_; }
  // True if the step of `round` is skipped; nullopt if the verdict on it is not
  // known.
  std::optional<bool> Skipped(int64_t round) const {
    return job_->votes() ? verdicts_->Skipped(round) : false;
  }

  // OK if the caller may push `round`. Errors: kInvalidArgument, the round is
  // not the one after the last that is done.
  absl::Status CheckPush(int64_t round) const;

  // Notes that the caller has pushed `round`.
  void Push(int64_t round);
  // Notes that the contribution is sent. Returns false if it was sent before.
  bool Send();
  // Notes that the open round is done. `mean`: see LayerDone::mean.
  void Finish(int contributors, Buffer mean);
  // Notes that the first values have arrived, as of `round`.
  void OnFetched(int64_t round);
  // Notes that the layer has another route from now on: no round is open.
  void OnReroute();
  // Begins again: the first values are to come.
  void Restart();
  // Enters the job's next epoch.
  void OnEpoch(JobPtr job) { job_ = std::move(job); }
  // Tells the driver of the last round that is done, unless the driver has been
  // told or the verdict on the step is not known.
  void ReportIfSettled(Outbox& out);

 private:
  JobPtr job_;                // The job in the current epoch.
  int layer_;                 // Index of the layer.
  int rank_;                  // This worker's rank.
  const Verdicts* verdicts_;  // Verdicts that this worker knows; not owned.
  int64_t pushed_round_ = kInitialRound - 1;  // See pushed_round().
  int64_t done_round_ = kInitialRound - 1;    // See done_round().
  bool is_unsent_ = false;                    // See is_unsent().
  int contributors_ = 0;                      // See contributors().
  bool is_reported_ = true;                   // See is_reported().
  Buffer mean_;  // Mean gradient of the unreported round.
};

}  // namespace nereus
