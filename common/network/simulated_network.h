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

// Properties of a simulated network. A value type.
struct NetworkOptions {
  // Range of the latency. Each frame between nodes takes a time drawn evenly
  // from it, beside the time that rates cost.
  absl::Duration delay_min = absl::Microseconds(10);
  absl::Duration delay_max = absl::Milliseconds(5);

  // Time that each message costs the sender's interface and the receiver's,
  // beside its bytes: the processor's time to write or read it. A message is
  // one frame, or several fused frames that wait together.
  absl::Duration message_time = absl::ZeroDuration();

  // Probability that a frame is sent twice, as when a sender repeats a frame
  // that a broken connection may have lost.
  double repeat_probability = 0.0;

  // Number of bytes that a process may have on their way to another one: the
  // window of a TCP connection. A single frame may always leave. There is no
  // window if all rates on the way are unlimited and no link was set.
  int64_t window_bytes = int64_t{1} << 20;
};

// Number of a process in a simulation. A new process gets a new number.
using ProcessId = int;

// Number of a computer with one network interface. One or more processes share
// the interface.
using NodeId = int;

// Rate of an interface or link that takes no time.
inline constexpr double kUnlimitedRate =
    std::numeric_limits<double>::infinity();

// Rates of a node's interface in bytes per second, > 0; both directions work at
// the same time.
struct NodeRate {
  double egress = kUnlimitedRate;   // Sending.
  double ingress = kUnlimitedRate;  // Receiving.
};

// Path between two nodes; both directions are alike.
struct Link {
  double rate = kUnlimitedRate;                       // Bytes per second, > 0.
  absl::Duration extra_delay = absl::ZeroDuration();  // Added latency.
};

// Network in memory, on virtual time. Frames from one process to another are
// sent by Frame::priority, as in SendQueue, and keep their order once they have
// left. Frames of different pairs may overtake each other. The owner breaks
// connections and makes them again.
//
// A node sends one message at a time and receives one frame at a time, each at
// its rate. The pairs of processes take turns, and so share a rate fairly. A
// pair with a full window is skipped, so a sender spends nothing on a receiver
// that is behind. Together this comes close to max-min fairness. A frame
// arrives while it is being sent: alone on its way, it takes the time of the
// slowest part and the latency. Without rates there are only the latency and
// the message time.
//
// Frames between processes of one node do not touch its interface. They go
// through its memory, one at a time, without latency or message time. They take
// no time unless SetMemoryRate was called.
//
// A frame refers to its payload until it is delivered, and the payload is read
// only then. So the tests notice a machine that overwrites a payload too early.
//
// Used by one thread, which also runs the event queue. Deterministic: equal
// seeds and calls give equal runs (digest). Memory grows with the number of
// frames under way. The machines bound this number.
class SimulatedNetwork {
 public:
  // Receiver of frames. Returns false if `to` is not ready: the frame is
  // offered again (OfferAgain), and the frames behind it wait.
  using Deliver =
      std::function<bool(ProcessId from, ProcessId to, const Frame&)>;

  // `events` is not owned and must outlive this. `deliver` is called with each
  // frame that has arrived and has no frame before it.
  SimulatedNetwork(const NetworkOptions& options, uint64_t seed,
                   EventQueue* events, Deliver deliver);

  // Puts a process on a node. A process that was never placed is on the node
  // with its own number. REQUIRES: the process has sent and received nothing
  // yet.
  void Place(ProcessId process, NodeId node);

  // Setters of rates, which hold from the next frame on. A node's factor slows
  // its interface down, or speeds it up, in both directions.
  void SetRate(NodeId node, const NodeRate& rate);
  void SetRateFactor(NodeId node, double factor);
  // Sets the bytes per second, > 0, of frames between processes of one node.
  void SetMemoryRate(NodeId node, double rate);
  // Sets the path between two nodes, in both directions.
  void SetLink(NodeId a, NodeId b, const Link& link);

  // Sends a frame. It is dropped if the connection is broken and `from` has not
  // made a new one.
  void Send(ProcessId from, ProcessId to, const Frame& frame);

  // Breaks the connection between two processes: all frames under way are lost.
  void Break(ProcessId a, ProcessId b);

  // Lets `from` send to `to` again after Break. The other direction needs a
  // call of its own.
  void Connect(ProcessId from, ProcessId to);

  // Offers `to` the frames that it was not ready for.
  void OfferAgain(ProcessId to);

  // Hash of all frames that receivers have taken, in order, with their times.
  // Equal for equal runs.
  uint64_t digest() const { return digest_; }
  // Number of frames that receivers have taken.
  int64_t frames_delivered() const { return frames_delivered_; }

 private:
  using Direction = std::pair<ProcessId, ProcessId>;  // From, to.
  using LaneIndex = uint32_t;                         // Index in lanes_.
  static constexpr FramePool::Index kNone = FramePool::kNone;

  // All frames from one process to another one, oldest to newest. The frames
  // are one list, and marks divide it into parts: frames that the receiver was
  // not ready for, frames that have begun to leave and are not through the
  // receiver's interface, and frames that have not begun to leave. There are as
  // many lanes as pairs; each fits a cache line.
  //
  //   oldest ...  arriving ...  left | leaving ...  newest
  //   refused     on the way         | waiting to be sent
  struct Lane {
    ProcessId from = 0;       // Sender.
    ProcessId to = 0;         // Receiver.
    uint32_t connection = 0;  // Number of connections that broke.
    // Marks: frames in frames_, or kNone.
    //
    // First frame that the receiver has not accepted.
    FramePool::Index oldest = kNone;
    // First frame that is not through the receiver's interface.
    FramePool::Index arriving = kNone;
    // First frame that has not begun to leave.
    FramePool::Index leaving = kNone;
    // Last frame that has begun to leave.
    FramePool::Index left = kNone;
    FramePool::Index newest = kNone;  // Last frame of the list.
    int32_t arrived = 0;  // Number of frames before the receiver's interface.
    bool broken = false;  // True until the sender connects again.
    bool leaving_in_turn = false;  // True if the lane is in the sender's turns.
    // True if the lane is in the receiver's turns.
    bool arriving_in_turn = false;
    int64_t flight_bytes = 0;  // Bytes that have left and are not accepted.
    // Time of the last arrival: frames keep their order.
    absl::Time last_arrival;
  };
  static_assert(sizeof(Lane) <= 64);

  // A lane during one of its connections. Events hold it, because after Break
  // an event must not touch the lane's new frames (IsCurrent).
  struct LaneRef {
    LaneIndex index = 0;      // The lane.
    uint32_t connection = 0;  // Lane::connection at the time.
  };

  // Part of a node that takes one message or frame at a time: the sending or
  // the receiving half of its interface, or its memory.
  struct Port {
    double rate = kUnlimitedRate;  // Bytes per second.
    bool busy = false;             // True while something goes through.
    std::deque<LaneIndex> turns;   // Lanes that have frames for it, in turn.
  };
  // A node's interface, and the memory that its processes share.
  struct Node {
    Port egress;          // Sending.
    Port ingress;         // Receiving.
    Port memory;          // Frames between two processes of the node.
    double factor = 1.0;  // Factor of the interface's rates.
  };

  // A link, and the times at which it is free. The first time is that of the
  // direction from the lower node.
  struct LinkState {
    Link link;              // Rate and delay.
    absl::Time free_at[2];  // Times when it is free.
  };

  // Returns the lane of a pair; makes it if it is new.
  LaneIndex LaneOf(Direction direction);
  // Returns a node; makes it if it is new.
  Node& NodeOf(NodeId node);
  // Returns the node of a process.
  NodeId PlaceOf(ProcessId process) const;
  // True if both ends are on one node.
  bool IsLocal(const Lane& lane) const {
    return PlaceOf(lane.from) == PlaceOf(lane.to);
  }
  // True if the connection of `ref` has not broken.
  bool IsCurrent(LaneRef ref) const {
    return lanes_[ref.index].connection == ref.connection;
  }

  // Adds a frame to a lane, by its priority among the frames that have not
  // left.
  void Enqueue(LaneIndex index, const Frame& frame);
  // Returns the frame behind which a frame of this priority goes, as in
  // SendQueue; kNone: it is the first.
  FramePool::Index PlaceBehind(const Lane& lane, uint32_t priority);
  // Returns the port that the frames of a lane leave by.
  Port& WayOut(const Lane& lane);
  // Puts a lane into the sender's turns, if it has a frame that may leave.
  void TakeTurnToLeave(LaneIndex index);
  // True if the lane has a frame to send and room in its window.
  bool MayLeave(const Lane& lane) const;
  // Sends messages of the lanes in turn until the port is busy or no lane is
  // left. `port` is the egress or the memory of a node.
  void ServeSenders(Port* port);
  // Sends the lane's next frame on its way. `after`: time until the sender has
  // sent the frames before it. Returns the time that this frame takes the
  // sender.
  absl::Duration Leave(LaneIndex index, absl::Duration after);
  // Sends all frames of the lane's next message. Returns the time that they
  // take the sender.
  absl::Duration LeaveTogether(LaneIndex index);
  // Returns the time at which the receiver's interface may begin with a frame
  // that leaves at `start`.
  absl::Time ArrivalOf(const Lane& lane, int64_t bytes, absl::Time start);
  // Puts an arriving frame before the receiver's interface. A frame within a
  // node is received at once.
  void Arrive(LaneRef ref);
  // Receives frames of the lanes in turn until the interface is busy or no lane
  // is left.
  void ServeIngress(NodeId node);
  // Takes the lane's next frame out of the receiver's interface. Offers it,
  // unless a refused frame is before it.
  void Receive(LaneIndex index);
  // Offers the lane's oldest frame. Returns true if it is gone: accepted, or
  // lost.
  bool OfferOldest(LaneIndex index);
  // Adds a delivered frame to the digest.
  void Digest(ProcessId to, const Frame& frame);

  const NetworkOptions options_;  // Constant.
  EventQueue* const events_;      // Not owned.
  const Deliver deliver_;         // Receiver of frames.
  Random random_;                 // Source of latencies and repetitions.
  std::vector<NodeId> places_;    // Node of each process; -1: its own.
  std::deque<Node> nodes_;        // All nodes; references stay valid.
  // Links that were set, by their nodes, the lower one first.
  std::map<std::pair<NodeId, NodeId>, LinkState> links_;
  FramePool frames_;  // Memory of all frames under way.
  std::vector<Lane, HugePageAllocator<Lane>> lanes_;   // All lanes.
  absl::flat_hash_map<Direction, LaneIndex> lane_of_;  // Lane of each pair.
  // Pairs (to, from) with an oldest frame that was refused.
  std::set<Direction> waiting_;
  uint64_t digest_ = 0;           // Hash of all deliveries.
  int64_t frames_delivered_ = 0;  // Number of deliveries.
};

}  // namespace nereus
