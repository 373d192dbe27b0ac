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
#include "common/protocol/frame.h"

namespace nereus {

// Memory for millions of frames in many short lists. An index names a frame,
// and each frame has the index of the next frame in its list. A std::list for
// each pair of processes would allocate memory for every frame; here a new
// frame reuses the memory of a freed one. A reference to a frame stays valid
// until the frame is freed. Only one thread may use a pool. The pool has memory
// for the largest number of frames that it ever had at one time, and never
// shrinks.
class FramePool {
 public:
  // Name of a frame.
  using Index = uint32_t;
  // Index that names no frame.
  static constexpr Index kNone = UINT32_MAX;

  // Adds a copy of `frame`, without a next frame.
  Index Add(const Frame& frame) {
    const Index index = free_ != kNone ? free_ : MakeSlot();
    Slot& slot = At(index);
    free_ = slot.next;
    slot.frame = frame;
    slot.next = kNone;
    return index;
  }

  // Frees a frame, and releases its payload at once.
  void Free(Index index) {
    Slot& slot = At(index);
    slot.frame.payload = Buffer();
    slot.next = free_;
    free_ = index;
  }

  // Frame `index`. REQUIRES: not freed.
  const Frame& frame(Index index) const { return At(index).frame; }
  Frame& frame(Index index) { return At(index).frame; }
  // Index of the frame behind frame `index` in its list; kNone if there is
  // none. The caller may set it.
  Index& next(Index index) { return At(index).next; }

 private:
  // Memory of one frame.
  struct Slot {
    Frame frame;         // The frame.
    Index next = kNone;  // Next frame of the list, or next free slot.
  };
  // Slots that are allocated together. They never move, so references to frames
  // stay valid.
  using Block = std::vector<Slot, HugePageAllocator<Slot>>;
  // Number of slots of a block.
  static constexpr Index kSlotsPerBlock = 1 << 16;

  // Slot of an index.
  Slot& At(Index index) {
    return blocks_[index / kSlotsPerBlock][index % kSlotsPerBlock];
  }
  const Slot& At(Index index) const {
    return blocks_[index / kSlotsPerBlock][index % kSlotsPerBlock];
  }

  // Makes a slot, in a new block if the last block is full.
  Index MakeSlot() {
    if (blocks_.empty() || blocks_.back().size() == kSlotsPerBlock) {
      blocks_.emplace_back().reserve(kSlotsPerBlock);
    }
    blocks_.back().emplace_back();
    return static_cast<Index>((blocks_.size() - 1) * kSlotsPerBlock +
                              blocks_.back().size() - 1);
  }

  std::vector<Block> blocks_;  // Each has at most kSlotsPerBlock slots.
  Index free_ = kNone;         // First free slot.
};

// Properties of a simulated network. A value type.
struct NetworkOptions {
  // Range of the latency. Each frame between nodes takes a time that the
  // network draws evenly from this range, beside the time that rates cost.
  absl::Duration delay_min = absl::Microseconds(10);
  absl::Duration delay_max = absl::Milliseconds(5);

  // Time that each message costs the sender's interface, and again the
  // receiver's, beside the time for its bytes. It stands for the processor's
  // time to write or read a message. A message is one frame, or several fused
  // frames (Frame::fused) that wait for the same receiver.
  absl::Duration message_time = absl::ZeroDuration();

  // Probability that a frame is sent twice, as when a sender repeats a frame
  // that a broken connection may have lost.
  double repeat_probability = 0.0;

  // Window: limit of the bytes that are on their way from one process to
  // another one, as on a TCP connection. If nothing is on its way, a frame may
  // leave however long it is. The window does not count between two nodes with
  // unlimited rates, unless SetLink was called for any two nodes. It does not
  // count within a node whose memory has no rate.
  int64_t window_bytes = int64_t{1} << 20;

  // True: the network computes digest(), which takes 6 % of the time of a
  // simulation without payloads.
  bool computes_digest = true;
};

// Number of a process in a simulation. A new process gets a new number.
using ProcessId = int;

// Number of a node: a computer with one network interface. One or more
// processes share the interface.
using NodeId = int;

// Rate of an interface or a link through which frames pass in no time.
inline constexpr double kUnlimitedRate =
    std::numeric_limits<double>::infinity();

// Rates of a node's interface, in bytes per second, > 0. The interface sends
// and receives at the same time.
struct NodeRate {
  double egress = kUnlimitedRate;   // Sending.
  double ingress = kUnlimitedRate;  // Receiving.
};

// Path between two nodes, with equal properties in both directions.
struct Link {
  double rate = kUnlimitedRate;                       // Bytes per second, > 0.
  absl::Duration extra_delay = absl::ZeroDuration();  // Added latency.
};

// Network in memory, on virtual time. Frames from one process to another leave
// in the order of Frame::priority, as in SendQueue, and arrive in the order in
// which they left. Frames of different pairs of processes may overtake each
// other. The owner of the network breaks connections (Break) and makes them
// again (Connect).
//
// A node sends one message at a time at its egress rate, and receives one frame
// at a time at its ingress rate. The pairs of processes take turns, and so
// share a rate fairly. The sender skips a pair with a full window, so it spends
// no time on a receiver that is behind. Together this comes close to max-min
// fairness. The receiver's interface works on a frame while the sender's still
// sends it. So a frame that is alone on its way takes the time of the slowest
// part of the way, plus the latency. Without rates there are only the latency
// and the message time.
//
// Frames between processes of one node do not use the node's interface. They go
// through the node's memory, one at a time, without latency or message time.
// They take no time unless SetMemoryRate was called.
//
// A frame refers to its payload until it is delivered, and the receiver reads
// the payload only then. So tests notice a machine that overwrites a payload
// too early.
//
// Only one thread may use a network; the same thread runs the event queue.
// Deterministic: equal seeds and calls give equal runs (digest). Memory grows
// with the number of frames under way, which the machines bound.
class SimulatedNetwork {
 public:
  // Function that takes a frame that has arrived. It returns false if `to` is
  // not ready for the frame. The frame, and the frames behind it, then wait
  // until the owner calls OfferAgain.
  using Deliver =
      std::function<bool(ProcessId from, ProcessId to, const Frame&)>;

  // Makes a network without frames. `events` is not owned and must outlive
  // this. The network calls `deliver` with each frame that has arrived, once
  // all frames before it have been taken.
  SimulatedNetwork(const NetworkOptions& options, uint64_t seed,
                   EventQueue* events, Deliver deliver);

  // Puts a process on a node. A process that was never placed is on the node
  // that has the process's number. REQUIRES: the process has sent and received
  // nothing yet.
  void Place(ProcessId process, NodeId node);

  // Sets the rates of a node's interface. The new rates, and those of the
  // setters below, count from the next frame on.
  void SetRate(NodeId node, const NodeRate& rate);
  // Multiplies both rates of a node's interface by `factor`, > 0. Replaces an
  // earlier factor.
  void SetRateFactor(NodeId node, double factor);
  // Sets the bytes per second, > 0, of frames between processes of one node.
  void SetMemoryRate(NodeId node, double rate);
  // Sets the path between two nodes, in both directions.
  void SetLink(NodeId a, NodeId b, const Link& link);

  // Sends a frame. Drops it if the connection is broken and Connect(from, to)
  // was not called since.
  void Send(ProcessId from, ProcessId to, const Frame& frame);

  // Breaks the connection between two processes. All their frames that are
  // under way, in both directions, are lost.
  void Break(ProcessId a, ProcessId b);

  // Lets `from` send to `to` again after Break. The other direction needs a
  // call of its own.
  void Connect(ProcessId from, ProcessId to);

  // Offers `to` the frames for which it was not ready, and the frames behind
  // them.
  void OfferAgain(ProcessId to);

  // Hash of all frames that receivers have taken, in order, with their times.
  // Equal for equal runs. REQUIRES: NetworkOptions::computes_digest.
  uint64_t digest() const { return digest_; }
  // Number of frames that receivers have taken.
  int64_t frames_delivered() const { return frames_delivered_; }

 private:
  using Direction = std::pair<ProcessId, ProcessId>;  // From, to.
  using LaneIndex = uint32_t;                         // Index in lanes_.
  static constexpr FramePool::Index kNone = FramePool::kNone;

  // All frames from one process to another one, oldest to newest. They are one
  // list, and marks divide the list into three parts:
  //
  //   from oldest to before arriving   frames that the receiver has refused,
  //                                    and frames behind them that have arrived
  //   from arriving to left            frames that have begun to leave and are
  //                                    not through the receiver's interface
  //   from leaving to newest           frames that have not begun to leave
  //
  // Each part may be empty. There is a lane for each pair of processes; a lane
  // fits a cache line.
  struct Lane {
    ProcessId from = 0;       // Sender.
    ProcessId to = 0;         // Receiver.
    uint32_t connection = 0;  // Number of connections of the lane that broke.
    // Marks: indices in frames_, or kNone.
    //
    // First frame that the receiver has not taken.
    FramePool::Index oldest = kNone;
    // First frame that is not through the receiver's interface.
    FramePool::Index arriving = kNone;
    // First frame that has not begun to leave.
    FramePool::Index leaving = kNone;
    // Last frame that has begun to leave.
    FramePool::Index left = kNone;
    FramePool::Index newest = kNone;  // Last frame of the list.
    int32_t arrived = 0;              // Number of frames that wait for ingress.
    bool broken = false;              // True until the sender connects again.
    bool leaving_in_turn = false;  // True if the lane is in the sender's turns.
    // True if the lane is in the receiver's turns.
    bool arriving_in_turn = false;
    int64_t flight_bytes = 0;  // Bytes that have left and are not taken.
    // Latest time at which a frame arrives. No later frame arrives before it.
    absl::Time last_arrival;
  };
  static_assert(sizeof(Lane) <= 64);

  // Lane during one of its connections. Events have a LaneRef, because an event
  // from before a Break must not touch the lane's new frames (IsCurrent).
  struct LaneRef {
    LaneIndex index = 0;      // Index of the lane.
    uint32_t connection = 0;  // Lane::connection when the event was made.
  };

  // Part of a node that takes one message or frame at a time: the sending or
  // the receiving half of its interface, or its memory.
  struct Port {
    double rate = kUnlimitedRate;  // Bytes per second.
    bool busy = false;             // True while something goes through.
    std::deque<LaneIndex> turns;   // Lanes with frames for the port, in turn.
  };
  // A node's interface, and the memory that its processes share.
  struct Node {
    Port egress;          // Sending.
    Port ingress;         // Receiving.
    Port memory;          // Frames between two processes of the node.
    double factor = 1.0;  // Factor of the interface's rates.
  };

  // Link, and the times at which it is free: free_at[0] for frames from the
  // node with the lower number, free_at[1] for frames to that node.
  struct LinkState {
    Link link;              // Rate and delay.
    absl::Time free_at[2];  // Times when the directions are free.
  };

  // Returns the lane of a pair; makes the lane if there is none.
  LaneIndex LaneOf(Direction direction);
  // Returns a node; makes the node if there is none.
  Node& NodeOf(NodeId node);
  // Returns the node of a process.
  NodeId PlaceOf(ProcessId process) const;
  // True if sender and receiver are on one node.
  bool IsLocal(const Lane& lane) const {
    return PlaceOf(lane.from) == PlaceOf(lane.to);
  }
  // True if the connection of `ref` has not broken.
  bool IsCurrent(LaneRef ref) const {
    return lanes_[ref.index].connection == ref.connection;
  }

  // Adds a frame to a lane. Among the frames that have not left, its priority
  // decides its place.
  void Enqueue(LaneIndex index, const Frame& frame);
  // Returns the frame behind which a frame of this priority goes, as in
  // SendQueue; kNone: it is the first.
  FramePool::Index PlaceBehind(const Lane& lane, uint32_t priority);
  // Returns the port through which the frames of a lane leave: the sender's
  // egress, or its memory within a node.
  Port& WayOut(const Lane& lane);
  // Puts a lane into the sender's turns, if the lane MayLeave and is not there
  // yet.
  void TakeTurnToLeave(LaneIndex index);
  // True if the lane has a frame to send and room in its window.
  bool MayLeave(const Lane& lane) const;
  // Sends messages of the lanes in turn until the port is busy or no lane is
  // left. `port` is the egress or the memory of a node.
  void ServeSenders(Port* port);
  // Sends the lane's next frame on its way. `after`: time from now until the
  // sender begins with this frame. Returns the time that the sender takes to
  // send this frame.
  absl::Duration Leave(LaneIndex index, absl::Duration after);
  // Sends all frames of the lane's next message. Returns the time that the
  // sender takes to send them.
  absl::Duration LeaveTogether(LaneIndex index);
  // Returns the earliest time at which the receiver's interface can begin to
  // receive a frame of `bytes` bytes that begins to leave at `start`.
  absl::Time ArrivalOf(const Lane& lane, int64_t bytes, absl::Time start);
  // Lets an arriving frame wait for the receiver's interface. Receives a frame
  // within a node at once.
  void Arrive(LaneRef ref);
  // Receives frames of the lanes in turn until the interface is busy or no lane
  // is left.
  void ServeIngress(NodeId node);
  // Takes the lane's next frame out of the receiver's interface. Offers the
  // frame, unless a refused frame is before it.
  void Receive(LaneIndex index);
  // Offers the lane's oldest frame to the receiver. Returns true if the frame
  // has left the lane: the receiver took it, or broke the connection.
  bool OfferOldest(LaneIndex index);
  // Adds a delivered frame to the digest.
  void Digest(ProcessId to, const Frame& frame);

  const NetworkOptions options_;  // Constant.
  EventQueue* const events_;      // Not owned.
  const Deliver deliver_;         // Function that takes arrived frames.
  Random random_;                 // Source of latencies and repetitions.
  std::vector<NodeId> places_;    // Node of each process; -1: its own.
  std::deque<Node> nodes_;        // All nodes; references stay valid.
  // Links that were set, by their nodes, the lower one first.
  std::map<std::pair<NodeId, NodeId>, LinkState> links_;
  FramePool frames_;  // Memory of all frames under way.
  std::vector<Lane, HugePageAllocator<Lane>> lanes_;   // All lanes.
  absl::flat_hash_map<Direction, LaneIndex> lane_of_;  // Lane of each pair.
  // Pairs (to, from) of lanes whose oldest frame the receiver has refused.
  std::set<Direction> waiting_;
  uint64_t digest_ = 0;           // Hash of all deliveries.
  int64_t frames_delivered_ = 0;  // Number of deliveries.
};

}  // namespace nereus
