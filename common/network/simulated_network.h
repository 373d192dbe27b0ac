#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/huge_pages.h"
#include "common/base/random.h"
#include "common/network/event_queue.h"
#include "common/network/frame_pool.h"
#include "common/protocol/frame.h"

namespace nereus {

struct NetworkOptions {
  // Each frame takes a time drawn evenly from this range, beside what the rates
  // of its way cost: the latency, and its jitter.
  absl::Duration delay_min = absl::Microseconds(10);
  absl::Duration delay_max = absl::Milliseconds(5);

  // What each message costs a node's interface, both ways, beside its bytes:
  // the processor's time to write or read it. A message is one frame, or as
  // many as wait and are fused.
  absl::Duration message_time = absl::ZeroDuration();

  // The chance that a frame arrives a second time later, as it does when a
  // sender repeats what a broken connection may have lost.
  double repeat_probability = 0.0;

  // Bytes that one process may have on their way to another one, as far as some
  // rate on the way is finite: what a TCP connection's window is. One frame may
  // always go.
  int64_t window_bytes = int64_t{1} << 20;
};

// One process of a simulation; never another one.
using ProcessId = int;

// A machine with one network interface, that one or more processes run on.
using NodeId = int;

inline constexpr double kUnlimitedRate =
    std::numeric_limits<double>::infinity();

// What a node's interface carries in bytes/s, both ways at the same time; > 0.
struct NodeRate {
  double egress = kUnlimitedRate;
  double ingress = kUnlimitedRate;
};

// What is between two nodes, each way.
struct Link {
  double rate = kUnlimitedRate;  // Bytes/s, > 0.
  absl::Duration extra_delay = absl::ZeroDuration();
};

// An in-memory network on virtual time: frames between two processes go by
// Frame::priority, as in SendQueue, and keep their order once they have left,
// frames of different pairs overtake each other. Connections break, and are
// made again.
//
// A node sends one message at a time, and receives one at a time, each at its
// rate; the pairs of processes take turns, message by message, so that they
// share a rate fairly. A pair whose window is full passes, so a sender spends
// nothing on a receiver that is behind. Together that comes close to max-min
// fairness. A frame arrives while it is being sent: alone on its way it takes
// what its slowest part takes, and the latency. Frames between processes of one
// node take no time. As long as nobody sets a rate there is only the latency.
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

  // Which node a process runs on; one of its own, of the same number, unless
  // told otherwise. REQUIRES: it has sent and been sent nothing yet.
  void Place(ProcessId process, NodeId node);

  // From the next frame on. A node's factor slows it down (or up) both ways.
  void SetRate(NodeId node, const NodeRate& rate);
  void SetRateFactor(NodeId node, double factor);
  void SetLink(NodeId a, NodeId b, const Link& link);

  // Dropped if the connection is broken, and `from` has not made a new one.
  void Send(ProcessId from, ProcessId to, const Frame& frame);

  // Ends the connection between two processes: what is under way is lost.
  void Break(ProcessId a, ProcessId b);

  // `from` is ready for a new connection to `to`, if the last one broke.
  void Connect(ProcessId from, ProcessId to);

  // `to` may be ready for what it was not ready for.
  void OfferAgain(ProcessId to);

  // A digest of all that was delivered, in order, with times: equal for equal
  // runs.
  uint64_t digest() const { return digest_; }
  int64_t frames_delivered() const { return frames_delivered_; }

 private:
  using Direction = std::pair<ProcessId, ProcessId>;  // From, to.
  using LaneIndex = uint32_t;
  static constexpr FramePool::Index kNone = FramePool::kNone;

  // What one process has sent another one, from the oldest to the newest: those
  // that the receiver was not ready for, those before its interface or in it,
  // those on the way, and those before the sender's interface. There are many;
  // each fits a cache line.
  struct Lane {
    ProcessId from = 0;
    ProcessId to = 0;
    uint32_t connection = 0;  // Counts those that broke.
    // Frames in frames_, or kNone.
    FramePool::Index oldest = kNone;
    FramePool::Index arriving = kNone;  // The first not yet through the
    FramePool::Index leaving = kNone;  // receiver's, or the sender's interface;
    FramePool::Index left = kNone;     // the last one through that.
    FramePool::Index newest = kNone;
    int32_t arrived = 0;  // How many wait in front of the receiver's.
    bool broken = false;
    bool leaving_in_turn = false;   // In the sender's turns,
    bool arriving_in_turn = false;  // and in the receiver's.
    int64_t flight_bytes = 0;       // Left, and not yet accepted.
    absl::Time last_arrival;
  };
  static_assert(sizeof(Lane) <= 64);

  // A lane as of one of its connections; small, so that events are.
  struct LaneRef {
    LaneIndex index = 0;
    uint32_t connection = 0;
  };

  // One direction of a node's interface.
  struct Port {
    double rate = kUnlimitedRate;
    bool busy = false;
    std::deque<LaneIndex> turns;  // Of lanes that have something for it.
  };
  struct Node {
    Port egress;
    Port ingress;
    double factor = 1.0;
  };

  // A link, and until when it is taken each way: by the lower node first.
  struct LinkState {
    Link link;
    absl::Time free_at[2];
  };

  LaneIndex LaneOf(Direction direction);
  Node& NodeOf(NodeId node);
  NodeId PlaceOf(ProcessId process) const;
  bool IsLocal(const Lane& lane) const {
    return PlaceOf(lane.from) == PlaceOf(lane.to);
  }
  // Whether the connection is still the same.
  bool IsCurrent(LaneRef ref) const {
    return lanes_[ref.index].connection == ref.connection;
  }

  void Enqueue(LaneIndex index, const Frame& frame);
  // The frame of a lane behind which one of this rank goes, as in SendQueue;
  // kNone: it is the first.
  FramePool::Index PlaceBehind(const Lane& lane, uint32_t priority);
  void TakeTurnToLeave(LaneIndex index);
  bool MayLeave(const Lane& lane) const;
  void ServeEgress(NodeId node);
  // Sends the lane's next frame on its way, `after` what else the sender is
  // about to do; how long it takes the sender.
  absl::Duration Leave(LaneIndex index, absl::Duration after);
  // The same for all frames of its next message.
  absl::Duration LeaveTogether(LaneIndex index);
  // When its first byte is to enter the receiver, if it leaves at `start`.
  absl::Time ArrivalOf(const Lane& lane, int64_t bytes, absl::Time start);
  void Arrive(LaneRef ref);
  void ServeIngress(NodeId node);
  // The lane's next frame is through the receiver's interface.
  void Receive(LaneIndex index);
  // Offers the lane's oldest frame; whether it is gone.
  bool OfferOldest(LaneIndex index);
  void Digest(ProcessId to, const Frame& frame);

  const NetworkOptions options_;
  EventQueue* const events_;
  const Deliver deliver_;
  Random random_;
  std::vector<NodeId> places_;  // By process; -1: its own.
  std::deque<Node> nodes_;
  std::map<std::pair<NodeId, NodeId>, LinkState> links_;  // Lower node first.
  FramePool frames_;
  std::vector<Lane, HugePageAllocator<Lane>> lanes_;
  absl::flat_hash_map<Direction, LaneIndex> lane_of_;
  std::set<Direction> waiting_;  // To, from: whose oldest frame was refused.
  uint64_t digest_ = 0;
  int64_t frames_delivered_ = 0;
};

}  // namespace nereus
