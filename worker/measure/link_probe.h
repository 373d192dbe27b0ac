#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "common/plan/timeline.h"

namespace nereus {

// Measures this worker's link, by trains of frames to a server, who answers the
// last frame of each: one frame without payload says what a frame takes there
// and back, several what each costs beside that, large ones what bytes cost.
//
// They leave at quiet moments. Some will meet something nevertheless: what
// counts is the fastest of late. First one leaves at each such moment, later
// one a second, so that what it says follows the network. Large trains become
// longer where they arrive at once.
//
// Pure.
class LinkProbe {
 public:
  LinkProbe();

  struct Train {
    int64_t id = 0;
    int frames = 0;
    int64_t payload_bytes = 0;  // Of each.
  };

  // A quiet moment. The train that is to be sent now, if any.
  std::optional<Train> Next(absl::Time now);
  // It has arrived.
  void OnAnswer(int64_t id, absl::Time now);

  // Nothing, until there is enough.
  std::optional<LinkSpeed> speed() const;

 private:
  enum Kind { kOne, kSeveral, kLarge };
  static constexpr int kKinds = 3;

  struct Sample {
    int frames = 0;
    double seconds = 0;
  };

  int FramesOf(Kind kind) const;
  double FastestOf(Kind kind) const;  // Seconds.

  int64_t next_id_ = 0;
  absl::Time sent_ = absl::InfinitePast();  // The last one,
  int under_way_ = 0;                       // of so many frames; 0: answered.
  int large_frames_;
  std::array<std::deque<Sample>, kKinds> samples_;  // The last ones of each.
};

}  // namespace nereus
