#pragma once

#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/time_histogram.h"
#include "common/protocol/frame.h"

namespace nereus {

// Measures, for each round of a chunk, the time from the first frame of a
// contribution to the last: how far apart the workers are. A round counts when
// the first frame of a later round comes. Frames that come after that do not
// count, such as those of a worker that a quorum did not wait for. Not
// thread-safe.
class ContributionTimes {
 public:
  // Handles a frame that the machine accepts. Ignores all kinds but
  // kContribution.
  void OnFrame(const FrameHeader& header, absl::Time now);

  // Forgets the rounds that have not counted: the job goes back to a checkpoint
  // or the server has a new machine.
  void Restart() { open_.clear(); }

  // Times of the rounds that have counted.
  const TimeHistogram& times() const { return times_; }

 private:
  // Round of a chunk that has not counted yet.
  struct Open {
    int64_t round = 0;
    absl::Time first;  // Times of its first and last frame so far.
    absl::Time last;
  };

  // Rounds that have not counted, by layer and chunk.
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, Open> open_;
  TimeHistogram times_;
};

}  // namespace nereus
