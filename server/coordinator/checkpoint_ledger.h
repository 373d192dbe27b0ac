#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/job.h"
#include "common/protocol/membership.h"

namespace nereus {

// One shard's file of a checkpoint.
struct CheckpointFile {
  std::string name;  // In the checkpoint's folder.
  int64_t bytes = 0;
  uint32_t crc = 0;  // CRC-32C of the file.
};

// What a job needs of a checkpoint to go on from it.
struct CheckpointRecord {
  int64_t round = kInitialRound;
  int64_t contributions = 0;  // Of all steps up to and with that round's.
  std::vector<CheckpointFile> files;  // By shard; those that hold something.
  int64_t bytes() const;
};

// What the coordinator knows of its job's checkpoints: which parts are on disk,
// which one is the newest that is whole, and where in its examples the job was
// at each round. Plain bookkeeping.
class CheckpointLedger {
 public:
  struct State {
    // A stretch of steps with one set of workers.
    struct Stretch {
      int64_t first_step = 0;
      int64_t contributions_before = 0;
      int workers = 0;
    };
    std::vector<Stretch> stretches;  // First steps ascend.
    std::optional<CheckpointRecord> newest;
    uint64_t restarted_in = 0;  // The epoch that began with nothing but files.
  };

  CheckpointLedger() = default;
  explicit CheckpointLedger(State state) : state_(std::move(state)) {}

  // The job's next epoch. `restarted`: everybody starts from the base round.
  void OnEpoch(const Job& job, bool restarted);

  // A shard has written its part. All that the manifest needs if it was the
  // last one.
  std::optional<CheckpointRecord> OnPart(const Job& job,
                                         const CheckpointPart& part);

  // The manifest is on disk.
  void OnComplete(const CheckpointRecord& record);

  // The newest one, of this job or of the one that it goes on from.
  const std::optional<CheckpointRecord>& newest() const {
    return state_.newest;
  }
  const State& state() const { return state_; }

 private:
  int64_t ContributionsUpTo(int64_t round) const;

  State state_;
  // Of rounds that are not whole yet: files by shard.
  std::map<int64_t, std::map<int, CheckpointFile>> parts_;
};

}  // namespace nereus
