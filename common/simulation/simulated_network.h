#ifndef NEREUS_COMMON_SIMULATION_SIMULATED_NETWORK_H_
#define NEREUS_COMMON_SIMULATION_SIMULATED_NETWORK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "common/base/random.h"
#include "common/protocol/frame.h"
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

// One process of a simulation; never another one.
using ProcessId = int;

// An in-memory network on virtual time: frames between two processes keep their
// order, frames of different pairs overtake each other. Connections break, and
// are made again.
//
// A frame holds its payload by reference until it is delivered, and is read
// then: a machine that changes bytes too early is found out.
class SimulatedNetwork {
 public:
  // False: `to` is not ready for it; it is offered again, and those behind it
  // wait.
  using Deliver =
      std::function<bool(ProcessId from, ProcessId to, const Frame&)>;

  // `events` is not owned and must outlive this. `deliver` is called at each
  // arrival.
  SimulatedNetwork(const NetworkOptions& options, uint64_t seed,
                   EventQueue* events, Deliver deliver);

  // Dropped if the connection is broken, and `from` has not made a new one.
  void Send(ProcessId from, ProcessId to, const Frame& frame);

  // Ends the connection between two processes: what is under way is lost.
  void Break(ProcessId a, ProcessId b);

  // `from` is ready for a new connection to `to`, if the last one broke.
  void Connect(ProcessId from, ProcessId to) { broken_.erase({from, to}); }

  // `to` may be ready for what it was not ready for.
  void OfferAgain(ProcessId to);

  // A digest of all that was delivered, in order, with times: equal for equal
  // runs.
  uint64_t digest() const { return digest_; }
  int64_t frames_delivered() const { return frames_delivered_; }

 private:
  using Direction = std::pair<ProcessId, ProcessId>;  // From, to.

  // What has been said in one direction.
  struct Lane {
    absl::Time last_arrival;
    int64_t connection = 0;     // Counts those that broke.
    std::deque<Frame> waiting;  // For the receiver to be ready.
  };

  void Schedule(Direction direction, const Frame& frame);
  void Arrive(Direction direction, const Frame& frame);
  bool Offer(Direction direction, const Frame& frame);
  void Digest(Direction direction, const Frame& frame);

  const NetworkOptions options_;
  EventQueue* const events_;
  const Deliver deliver_;
  Random random_;
  std::map<Direction, Lane> lanes_;
  std::set<Direction> broken_;
  uint64_t digest_ = 0;
  int64_t frames_delivered_ = 0;
};

}  // namespace nereus

#endif  // NEREUS_COMMON_SIMULATION_SIMULATED_NETWORK_H_
