#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/job.h"
#include "common/protocol/membership.h"

namespace nereus {

// File of one shard in a checkpoint.
struct CheckpointFile {
  std::string name;  // Name in the checkpoint's folder.
  int64_t bytes = 0;
  uint32_t crc = 0;  // CRC-32C of the file.
};

// Facts about a checkpoint that a job needs to go on from it.
struct CheckpointRecord {
  int64_t round = kInitialRound;  // Round of all layers in the checkpoint.
  // Number of contributions in all steps up to and with the round's.
  int64_t contributions = 0;
  std::vector<CheckpointFile> files;  // Shards with a file, ascending.
  // Bytes of all files.
  int64_t bytes() const;
};

// Checkpoints of the job that are complete or being written: which parts are on
// disk, which complete one is the newest, and how many contributions the job
// had made at each round. Plain bookkeeping.
//
// Bounded: parts of at most eight incomplete rounds.
class CheckpointLedger {
 public:
  struct State {
    // Stretch of steps that one set of workers did.
    struct Stretch {
      int64_t first_step = 0;
      int64_t contributions_before = 0;  // Contributions of earlier steps.
      int workers = 0;
    };
    std::vector<Stretch> stretches;          // First steps ascend.
    std::optional<CheckpointRecord> newest;  // Newest complete checkpoint.
    uint64_t restarted_in = 0;  // Last epoch that began from a checkpoint.
  };

  CheckpointLedger() = default;
  explicit CheckpointLedger(State state) : state_(std::move(state)) {}

  // Starts an epoch. `restarted`: all members go back to the base round.
  void OnEpoch(const Job& job, bool restarted);

  // Notes the part of one shard. Returns the record of the checkpoint if this
  // part was the last one.
  std::optional<CheckpointRecord> OnPart(const Job& job,
                                         const CheckpointPart& part);

  // Notes that the manifest of a checkpoint is on disk.
  void OnComplete(const CheckpointRecord& record);

  // Newest complete checkpoint, of this job or of the job that it goes on from.
  const std::optional<CheckpointRecord>& newest() const {
    return state_.newest;
  }
  const State& state() const { return state_; }

 private:
  // Returns the number of contributions in all steps up to `round`.
  int64_t ContributionsUpTo(int64_t round) const;

  State state_;
  // Files of incomplete rounds, by round and shard.
  std::map<int64_t, std::map<int, CheckpointFile>> parts_;
};

}  // namespace nereus
