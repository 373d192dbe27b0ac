#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"

namespace nereus {

// File of one shard in a checkpoint.
struct CheckpointFile {
  std::string name;  // Name in the checkpoint's folder.
  int64_t bytes = 0;
  uint32_t crc = 0;  // CRC-32C of the file.

  bool operator==(const CheckpointFile&) const = default;
};

// Facts about a checkpoint. A job that goes on from the checkpoint needs them.
struct CheckpointRecord {
  int64_t round = kInitialRound;  // Round of all layers in the checkpoint.
  // Number of contributions to all steps up to and including `round`.
  int64_t contributions = 0;
  std::vector<CheckpointFile> files = {};  // In the order of the shards.
  // Bytes of all files.
  int64_t bytes() const;
};

// Outcome of looking for an older checkpoint in place of a damaged one.
struct CheckpointSetAside {
  // New name of the damaged checkpoint's folder; "": it was not renamed.
  std::string folder;
  // Newest checkpoint of an earlier round that this job can use, as far as its
  // manifest tells; nothing: none is left.
  std::optional<CheckpointRecord> older;
  // Rounds of other checkpoints that cannot be used, the newest first.
  std::vector<int64_t> unusable;
};

// Outcome of an event, which the ledger's owner logs and saves.
struct CheckpointNews {
  bool bad = false;    // True for a warning.
  std::string text;    // Line for the log.
  bool saves = false;  // True if the state to save has changed.
};

// Checkpoints of the job: requested, being written, complete, and failed; and
// the number of contributions that the job had made at each round. A request is
// in one of three states:
//
//   none    --Request----------------------------------> wanted
//   wanted  --an epoch begins, which has a round for it--> planned
//   planned --the checkpoint is made, or it fails--------> none
//
// If a worker has begun the planned round when a request comes, the request is
// for another checkpoint, because the planned checkpoint may have parameters
// from before the request. The other checkpoint is wanted once the planned one
// is made or has failed.
//
// The checkpoint of a round is in one of these states:
//
//   parts --last part (OnPart)--> completing --manifest (OnWritten)--> complete
//   parts, completing --an error--> failed
//   completing --the job goes back without it (Abandon)--> abandoned
//   complete --a server cannot load it (OnDamaged)--> set aside
//
// Plain bookkeeping. Bounded: parts of at most eight incomplete rounds, and the
// newest 16 rounds that failed or were damaged. The checkpoints that are
// completing have no limit here: a disk that writes their manifests slowly
// takes their parts slowly, too.
class CheckpointLedger {
 public:
  struct State {
    // Stretch of steps that one set of workers did.
    struct Stretch {
      int64_t first_step = 0;
      int64_t contributions_before = 0;  // Contributions to earlier steps.
      int workers = 0;                   // Number of workers in the set.
    };
    std::vector<Stretch> stretches;          // First steps ascend.
    std::optional<CheckpointRecord> newest;  // Newest complete checkpoint.
    uint64_t restarted_in = 0;  // Last epoch that began from a checkpoint.
    // Checkpoint that was found damaged and set aside.
    struct Damaged {
      int64_t round = 0;
      std::string why;  // The file, and its damage.
    };
    // Damaged checkpoints that were found since the last one was completed, in
    // order.
    std::vector<Damaged> damaged;
  };

  CheckpointLedger() = default;
  explicit CheckpointLedger(State state, bool wanted = false)
      : state_(std::move(state)), wanted_(wanted) {}

  const State& state() const { return state_; }
  // Newest complete checkpoint: of this run of the job, or the one that this
  // run has started from.
  const std::optional<CheckpointRecord>& newest() const {
    return state_.newest;
  }
  // Round of the newest complete checkpoint; kInitialRound if there is none.
  int64_t saved_round() const {
    return newest().has_value() ? newest()->round : kInitialRound;
  }

  // True from a request until its checkpoint is made or has failed.
  bool wanted() const { return wanted_; }
  // True if the next epoch must have a round for a requested checkpoint.
  bool needs_round() const { return wanted_ && !planned_; }
  // True while a manifest is being written: any manifest, or that of `round`.
  bool is_completing() const { return !completing_.empty(); }
  bool IsCompleting(int64_t round) const { return completing_.contains(round); }
  // Rounds of the manifests that are being written.
  std::vector<int64_t> completing_rounds() const;
  // Round of the damaged checkpoint for which an older one must be found;
  // nothing: there is none.
  std::optional<int64_t> setting_aside() const { return setting_aside_; }

  // Reason of the last failure of a checkpoint; "" if none has failed, or if a
  // checkpoint of the failed round or of a later one is complete.
  const std::string& failure() const { return failure_; }
  // True if the checkpoint of `round` has failed.
  bool HasFailed(int64_t round) const { return failed_rounds_.contains(round); }

  // Requests a checkpoint of a round that no worker has begun. `has_begun`: a
  // worker has begun the round of the planned checkpoint. Returns true if the
  // state to save has changed.
  bool Request(bool has_begun);

  // Starts an epoch. `from_base`: all members go back to the base round.
  void OnEpoch(const Job& job, bool from_base);

  // False for a part from before the job went back to a checkpoint, and for one
  // of a round before the first stretch or not after the newest checkpoint.
  bool Counts(const Job& job, const CheckpointPart& part) const;

  // Notes the part of one shard, if it counts. Returns the record of the
  // checkpoint if this part was the last one: then its manifest must be
  // written.
  std::optional<CheckpointRecord> OnPart(const Job& job,
                                         const CheckpointPart& part);

  // Notes that the manifest of the checkpoint of `round` was written, or the
  // error if it was not. REQUIRES: IsCompleting(round).
  CheckpointNews OnWritten(int64_t round, const absl::Status& written,
                           const Job& job);

  // Notes that there will be no checkpoint of `round`.
  CheckpointNews OnFailure(int64_t round, const std::string& why,
                           const Job& job);

  // Gives up all checkpoints that lack only their manifests, because the job
  // goes back without them. Returns their rounds.
  std::vector<int64_t> Abandon();
  // True if an abandoned manifest of `round` is being written.
  bool IsAbandoned(int64_t round) const { return abandoned_.contains(round); }
  // Notes that the driver has ended the write of an abandoned manifest. Returns
  // the record of its checkpoint; nothing if that of `round` is not abandoned.
  std::optional<CheckpointRecord> TakeAbandoned(int64_t round);

  // Notes that the checkpoint of `round` is damaged, unless one is known to be.
  // `why`: names the file.
  void OnDamaged(int64_t round, std::string why);
  // Returns setting_aside() if the driver must look for an older checkpoint
  // now; nothing if it does so already.
  std::optional<int64_t> BeginLook();
  // Notes that the driver could not look. BeginLook then returns the round
  // again.
  void EndLook() { looks_ = false; }
  // Makes the older checkpoint the newest one. Returns the news. REQUIRES:
  // setting_aside(), and found.older.
  CheckpointNews OnSetAside(const CheckpointSetAside& found);
  // Returns what is wrong with the damaged checkpoints: "that of round 40:
  // ..."; "" if there are none.
  std::string DescribeDamaged() const;

  // Makes `record` the newest complete checkpoint, unless a newer one exists.
  void OnComplete(const CheckpointRecord& record);

 private:
  // Returns the number of contributions to all steps up to and including
  // `round`.
  int64_t ContributionsUpTo(int64_t round) const;
  // Ends the planned request if its round is `round` or earlier. Returns true
  // if it has ended the request.
  bool EndPlanned(int64_t round, const Job& job);

  State state_;
  // Files of incomplete rounds, by round and shard.
  std::map<int64_t, std::map<int, CheckpointFile>> parts_;
  // Checkpoints that wait for their manifest, by round.
  std::map<int64_t, CheckpointRecord> completing_;
  // Checkpoints that were abandoned while their manifest was being written.
  std::multimap<int64_t, CheckpointRecord> abandoned_;
  std::optional<int64_t> setting_aside_;  // See setting_aside().
  bool looks_ = false;                    // True after BeginLook.
  bool wanted_ = false;  // True if a checkpoint is wanted or planned.
  // True if another checkpoint is wanted after the planned one.
  bool wanted_again_ = false;
  bool planned_ = false;  // True if the epoch has a round for the request.
  std::string failure_;   // Reason of the last failure; see failure().
  std::set<int64_t> failed_rounds_;  // Newest rounds that failed.
};

}  // namespace nereus
