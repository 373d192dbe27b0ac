#ifndef NEREUS_COMMON_SIMULATION_SIMULATED_NETWORK_H_
#define NEREUS_COMMON_SIMULATION_SIMULATED_NETWORK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/time/time.h"
#include "common/base/random.h"
#include "common/protocol/frame.h"
#include "common/protocol/peer.h"
#include "common/simulation/event_queue.h"

namespace nereus {

struct NetworkOptions {
  // Each frame takes a time drawn evenly from this range.
  absl::Duration delay_min = absl::Microseconds(10);
  absl::Duration delay_max = absl::Milliseconds(5);

  // The chance that a frame arrives a second time later, as it does when a
  // sender repeats what a broken connection may have lost.
  double repeat_probability = 0.0;
};

// An in-memory network on virtual time: frames between two peers keep their
// order, frames of different pairs overtake each other.
//
// A frame holds its payload by reference until it is delivered, and is read
// then: a machine that changes bytes too early is found out.
class SimulatedNetwork {
 public:
  using Deliver = std::function<void(PeerId from, PeerId to, const Frame&)>;

  // `events` is not owned and must outlive this. `deliver` is called at each
  // arrival.
  SimulatedNetwork(const NetworkOptions& options, uint64_t seed,
                   EventQueue* events, Deliver deliver);

  void Send(PeerId from, PeerId to, const Frame& frame);

  // A digest of all that was delivered, in order, with times: equal for equal
  // runs.
  uint64_t digest() const { return digest_; }
  int64_t frames_delivered() const { return frames_delivered_; }

 private:
  void Schedule(PeerId from, PeerId to, const Frame& frame);
  void Arrive(PeerId from, PeerId to, const Frame& frame);

  const NetworkOptions options_;
  EventQueue* const events_;
  const Deliver deliver_;
  Random random_;
  std::map<std::pair<PeerId, PeerId>, absl::Time> last_arrival_;
  uint64_t digest_ = 0;
  int64_t frames_delivered_ = 0;
};

}  // namespace nereus

#endif  // NEREUS_COMMON_SIMULATION_SIMULATED_NETWORK_H_
