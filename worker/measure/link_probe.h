#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "common/plan/timeline.h"
#include "common/protocol/membership.h"

namespace nereus {

// Speed that a worker measures by probes (LinkProbe).
enum class Probed { kNothing, kLink, kMemory };

// Measurement by probes that one worker makes in an epoch.
struct ProbePlan {
  Probed probed = Probed::kNothing;
  // Member that gets the probes; unused with kNothing. kLink: a server.
  // kMemory: another worker of this host.
  PeerId target;
  int local_workers = 1;  // Number of workers of this host.
};

// Returns the measurement that a worker makes in an epoch. The first worker of
// each host measures the host's link, to a server on another host if there is
// one. The second worker measures the host's memory, unless the job has partial
// rounds: then workers of one host hand each other nothing. If all workers of a
// host measured at the same time, each would get a part of the rate only.
ProbePlan PlanProbes(const EpochStart& start);

// Measures the link of this worker to a server, or the memory through which it
// reaches another worker of its host, by trains of probe frames. The frames of
// a train leave one behind the other, and the receiver answers the last one. A
// train of one frame without payload measures the time of a frame there and
// back. A train of several such frames measures the time that each further
// frame takes. A train of large frames measures the rate.
//
// Trains leave at quiet moments, when no round is under way. Some trains meet
// other traffic nevertheless, so the fastest of the last trains of each kind
// counts. The first trains, up to a result, leave one at each quiet moment.
// Later trains leave once a second at most; they let the result follow the
// network. If a train of large frames is answered within 20 ms, the time is too
// short to measure well, and the next such train has twice as many frames, up
// to a limit.
//
// Pure. Bounded: keeps the last nine samples of each kind of train.
class LinkProbe {
 public:
  // Number of samples of each kind that are kept.
  static constexpr size_t kKept = 9;

  // `needed`: number of samples of each kind that a result needs, at most
  // kKept. The fastest counts, so with more samples fewer results are too slow
  // because the receiver was busy.
  explicit LinkProbe(size_t needed = 4);

  // Frames that are sent one behind the other.
  struct Train {
    int64_t id = 0;  // Number of the train, which the answer repeats.
    int frames = 0;  // Number of frames.
    int64_t payload_bytes = 0;  // Payload of each frame.
  };

  // Returns the train to send now, if one is due. Called at quiet moments only.
  std::optional<Train> Next(absl::Time now);
  // Handles the answer to train `id`. Ignores answers to older trains.
  void OnAnswer(int64_t id, absl::Time now);

  // Returns the measured speed, or nothing while there are too few samples.
  std::optional<LinkSpeed> speed() const;
  // Returns the bytes per second of the fastest train of large frames, in which
  // the time for each frame counts; nothing while there are too few samples.
  // Unlike a rate without that time, it is no difference of two short times.
  std::optional<double> throughput() const;

 private:
  // Kinds of trains, in the order in which they take turns.
  enum Kind { kOne, kSeveral, kLarge };
  static constexpr int kKinds = 3;

  // Measurement of one train.
  struct Sample {
    int frames = 0;      // Number of frames of the train.
    double seconds = 0;  // Time until the answer.
  };

  // Returns the number of frames of the next train of this kind.
  int FramesOf(Kind kind) const;
  // True if there are enough samples of each kind for a result.
  bool has_enough() const;
  // Returns the time of the fastest sample, in seconds.
  double FastestOf(Kind kind) const;

  size_t needed_;        // Number of samples of each kind for a result.
  int64_t next_id_ = 0;  // Number of the next train.
  // Time at which the last train left.
  absl::Time sent_ = absl::InfinitePast();
  // Number of frames of the train that is not answered yet; 0: all are
  // answered.
  int under_way_ = 0;
  int large_frames_;  // Number of frames of a large train.
  // Last samples of each kind.
  std::array<std::deque<Sample>, kKinds> samples_;
};

}  // namespace nereus
