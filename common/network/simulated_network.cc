// The simulated network, in the order of a frame's way:
//
//   Send -> Enqueue -> TakeTurnToLeave -> ServeSenders
//     -> LeaveTogether -> Leave
//     -> (event) Arrive -> ServeIngress -> (event) Receive -> OfferOldest
//
// A frame within a node waits for the node's memory and not for egress, and
// skips ServeIngress.
//
// A frame stays in the list of its lane from sender to receiver; only the
// lane's marks move (Lane). A call of `deliver_` may break the connection. It
// may also send on a new lane, and then all lanes may move in memory. So after
// a call of `deliver_`, no reference to a lane is valid, and IsCurrent tells
// whether the connection still exists.

#include "common/network/simulated_network.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/base/crc32c.h"
#include "common/base/huge_pages.h"
#include "common/base/logging.h"
#include "common/protocol/frame.h"

namespace nereus {

namespace {

// Length of the longest message of fused frames: that of the longest frame.
constexpr int64_t kMessageBytesMax = kFrameHeaderBytes + kFramePayloadBytesMax;

// Returns the length of a frame on the network, in bytes.
int64_t WireBytes(const Frame& frame) {
  return kFrameHeaderBytes + frame.header.payload_bytes;
}

// Returns the time that `bytes` take at `rate`.
absl::Duration TimeAt(double rate, int64_t bytes) {
  if (rate == kUnlimitedRate) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(bytes) / rate);
}

}  // namespace

SimulatedNetwork::SimulatedNetwork(const NetworkOptions& options, uint64_t seed,
                                   EventQueue* events, Deliver deliver)
    : options_(options),
      events_(events),
      deliver_(std::move(deliver)),
      random_(seed) {}

// Nodes and rates.

void SimulatedNetwork::Place(ProcessId process, NodeId node) {
  NEREUS_CHECK(process >= 0 && node >= 0) << process << " on " << node;
  if (process >= static_cast<ProcessId>(places_.size())) {
    places_.resize(process + 1, -1);
  }
  places_[process] = node;
}

NodeId SimulatedNetwork::PlaceOf(ProcessId process) const {
  const bool told =
      process < static_cast<ProcessId>(places_.size()) && places_[process] >= 0;
  return told ? places_[process] : process;
}

SimulatedNetwork::Node& SimulatedNetwork::NodeOf(NodeId node) {
  if (node >= static_cast<NodeId>(nodes_.size())) nodes_.resize(node + 1);
  return nodes_[node];
}

void SimulatedNetwork::SetRate(NodeId node, const NodeRate& rate) {
  NEREUS_CHECK(rate.egress > 0 && rate.ingress > 0)
      << rate.egress << ", " << rate.ingress;
  NodeOf(node).egress.rate = rate.egress;
  NodeOf(node).ingress.rate = rate.ingress;
}

void SimulatedNetwork::SetRateFactor(NodeId node, double factor) {
  NEREUS_CHECK(factor > 0) << factor;
  NodeOf(node).factor = factor;
}

void SimulatedNetwork::SetMemoryRate(NodeId node, double rate) {
  NEREUS_CHECK(rate > 0) << rate;
  NodeOf(node).memory.rate = rate;
}

void SimulatedNetwork::SetLink(NodeId a, NodeId b, const Link& link) {
  NEREUS_CHECK(link.rate > 0 && link.extra_delay >= absl::ZeroDuration())
      << link.rate << ", " << absl::FormatDuration(link.extra_delay);
  links_[std::minmax(a, b)].link = link;
}

SimulatedNetwork::LaneIndex SimulatedNetwork::LaneOf(Direction direction) {
  const auto [found, made] =
      lane_of_.try_emplace(direction, static_cast<LaneIndex>(lanes_.size()));
  if (made) {
    Lane& lane = lanes_.emplace_back();
    lane.from = direction.first;
    lane.to = direction.second;
    // Makes both nodes, so that later code may index nodes_ without a check.
    NodeOf(std::max(PlaceOf(lane.from), PlaceOf(lane.to)));
  }
  return found->second;
}

// The way of a frame: into the lane, out of the sender, into the receiver.

void SimulatedNetwork::Send(ProcessId from, ProcessId to, const Frame& frame) {
  const LaneIndex index = LaneOf({from, to});
  if (lanes_[index].broken) return;
  Enqueue(index, frame);
  if (random_.Chance(options_.repeat_probability)) Enqueue(index, frame);
}

void SimulatedNetwork::Enqueue(LaneIndex index, const Frame& frame) {
  Lane& lane = lanes_[index];
  const FramePool::Index added = frames_.Add(frame);
  const bool empty = lane.oldest == kNone;
  const FramePool::Index before =
      empty ? kNone : PlaceBehind(lane, frame.priority);
  if (before == kNone) {
    frames_.next(added) = lane.oldest;
    lane.oldest = added;
  } else {
    frames_.next(added) = frames_.next(before);
    frames_.next(before) = added;
  }
  // Moves the marks of which the new frame is now the first or the last.
  if (empty || before == lane.newest) lane.newest = added;
  if (before == lane.left) lane.leaving = added;
  if (lane.arriving == kNone || lane.arriving == frames_.next(added)) {
    lane.arriving = added;
  }
  TakeTurnToLeave(index);
}

FramePool::Index SimulatedNetwork::PlaceBehind(const Lane& lane,
                                               uint32_t priority) {
  const auto goes_before = [&](FramePool::Index other) {
    return priority < frames_.frame(other).priority;
  };
  if (lane.leaving == kNone || !goes_before(lane.newest)) return lane.newest;
  FramePool::Index before = lane.left;
  for (FramePool::Index next = lane.leaving; !goes_before(next);
       next = frames_.next(next)) {
    before = next;
  }
  return before;
}

SimulatedNetwork::Port& SimulatedNetwork::WayOut(const Lane& lane) {
  Node& node = nodes_[PlaceOf(lane.from)];
  return IsLocal(lane) ? node.memory : node.egress;
}

void SimulatedNetwork::TakeTurnToLeave(LaneIndex index) {
  Lane& lane = lanes_[index];
  if (lane.leaving_in_turn || !MayLeave(lane)) return;
  lane.leaving_in_turn = true;
  Port& port = WayOut(lane);
  port.turns.push_back(index);
  ServeSenders(&port);
}

bool SimulatedNetwork::MayLeave(const Lane& lane) const {
  if (lane.leaving == kNone) return false;
  // A single frame may always leave, even if it is longer than the window.
  if (lane.flight_bytes == 0) return true;
  const Node& from = nodes_[PlaceOf(lane.from)];
  const bool limited =
      IsLocal(lane)
          ? from.memory.rate != kUnlimitedRate
          : from.egress.rate != kUnlimitedRate ||
                nodes_[PlaceOf(lane.to)].ingress.rate != kUnlimitedRate ||
                !links_.empty();
  return !limited ||
         lane.flight_bytes + WireBytes(frames_.frame(lane.leaving)) <=
             options_.window_bytes;
}

void SimulatedNetwork::ServeSenders(Port* port) {
  while (!port->busy && !port->turns.empty()) {
    const LaneIndex index = port->turns.front();
    port->turns.pop_front();
    Lane& lane = lanes_[index];
    lane.leaving_in_turn = false;
    // Nothing to send: the connection broke while the lane waited.
    if (lane.leaving == kNone) continue;
    const absl::Duration service = LeaveTogether(index);
    if (MayLeave(lane)) {
      lane.leaving_in_turn = true;
      port->turns.push_back(index);
    }
    if (service == absl::ZeroDuration()) continue;
    port->busy = true;
    events_->After(service, [this, port] {
      port->busy = false;
      ServeSenders(port);
    });
  }
}

absl::Duration SimulatedNetwork::LeaveTogether(LaneIndex index) {
  Lane& lane = lanes_[index];
  const FramePool::Index first = lane.leaving;
  bool fused = frames_.frame(first).fused;
  // For a frame that has left, Frame::fused has another meaning, which
  // ServeIngress reads: the frame shares the message of the frame before it.
  frames_.frame(first).fused = false;
  int64_t bytes = WireBytes(frames_.frame(first));
  absl::Duration service =
      IsLocal(lane) ? absl::ZeroDuration() : options_.message_time;
  service += Leave(index, service);
  while (fused && MayLeave(lane)) {
    Frame& next = frames_.frame(lane.leaving);
    bytes += WireBytes(next);
    fused = next.fused && bytes <= kMessageBytesMax;
    if (fused) service += Leave(index, service);
  }
  return service;
}

absl::Duration SimulatedNetwork::Leave(LaneIndex index, absl::Duration after) {
  Lane& lane = lanes_[index];
  const int64_t bytes = WireBytes(frames_.frame(lane.leaving));
  lane.left = lane.leaving;
  lane.leaving = frames_.next(lane.leaving);
  lane.flight_bytes += bytes;
  const Node& from = nodes_[PlaceOf(lane.from)];
  const bool local = IsLocal(lane);
  const absl::Duration service =
      TimeAt(local ? from.memory.rate : from.egress.rate * from.factor, bytes);
  const absl::Time start = events_->now() + after;
  // Within a node, a frame arrives when all of it is copied.
  const absl::Time arrival =
      local ? start + service : ArrivalOf(lane, bytes, start);
  // Frames of a lane keep their order: this frame does not arrive before the
  // frame that left before it.
  lane.last_arrival = std::max(lane.last_arrival, arrival);
  events_->At(lane.last_arrival,
              [this, ref = LaneRef{index, lane.connection}] { Arrive(ref); });
  return service;
}

absl::Time SimulatedNetwork::ArrivalOf(const Lane& lane, int64_t bytes,
                                       absl::Time start) {
  const NodeId from_node = PlaceOf(lane.from);
  const NodeId to_node = PlaceOf(lane.to);
  const Node& from = nodes_[from_node];
  const Node& to = nodes_[to_node];
  absl::Duration delay =
      options_.delay_min +
      random_.Uniform() * (options_.delay_max - options_.delay_min);
  // Time when the last byte has left the sender's interface and, below, has
  // passed the link.
  absl::Time sent = start + TimeAt(from.egress.rate * from.factor, bytes);
  const auto found = links_.empty()
                         ? links_.end()
                         : links_.find(std::minmax(from_node, to_node));
  if (found != links_.end()) {
    const Link& link = found->second.link;
    absl::Time& free_at = found->second.free_at[from_node < to_node ? 0 : 1];
    free_at = std::max(start, free_at) + TimeAt(link.rate, bytes);
    sent = std::max(sent, free_at);
    delay += link.extra_delay;
  }
  // The receiver begins when the latency is over, and so late that it then
  // receives without a pause until the last byte. If the frame waits for the
  // link, the frames before it still keep the receiver busy.
  const absl::Duration receiving = TimeAt(to.ingress.rate * to.factor, bytes);
  return std::max(start + delay, sent + delay - receiving);
}

void SimulatedNetwork::Arrive(LaneRef ref) {
  if (!IsCurrent(ref)) return;
  Lane& lane = lanes_[ref.index];
  if (IsLocal(lane)) {
    Receive(ref.index);
    return;
  }
  ++lane.arrived;
  const NodeId node = PlaceOf(lane.to);
  if (!lane.arriving_in_turn) {
    lane.arriving_in_turn = true;
    nodes_[node].ingress.turns.push_back(ref.index);
  }
  ServeIngress(node);
}

void SimulatedNetwork::ServeIngress(NodeId node) {
  Port& port = nodes_[node].ingress;
  while (!port.busy && !port.turns.empty()) {
    const LaneIndex index = port.turns.front();
    port.turns.pop_front();
    Lane& lane = lanes_[index];
    lane.arriving_in_turn = false;
    // Nothing to receive: the connection broke while the lane waited.
    if (lane.arrived == 0) continue;
    if (--lane.arrived > 0) {
      lane.arriving_in_turn = true;
      port.turns.push_back(index);
    }
    const Frame& frame = frames_.frame(lane.arriving);
    const absl::Duration service =
        TimeAt(port.rate * nodes_[node].factor, WireBytes(frame)) +
        (frame.fused ? absl::ZeroDuration() : options_.message_time);
    if (service == absl::ZeroDuration()) {
      Receive(index);
      continue;
    }
    port.busy = true;
    events_->After(service, [this, ref = LaneRef{index, lane.connection}] {
      const NodeId to_node = PlaceOf(lanes_[ref.index].to);
      // Frees the interface even if the connection broke meanwhile.
      nodes_[to_node].ingress.busy = false;
      if (IsCurrent(ref)) Receive(ref.index);
      ServeIngress(to_node);
    });
  }
}

void SimulatedNetwork::Receive(LaneIndex index) {
  Lane& lane = lanes_[index];
  const bool behind_others = lane.arriving != lane.oldest;
  lane.arriving = frames_.next(lane.arriving);
  const Direction key = {lane.to, lane.from};
  if (!behind_others && !OfferOldest(index)) waiting_.insert(key);
}

bool SimulatedNetwork::OfferOldest(LaneIndex index) {
  // Takes the frame out of the lane before the receiver is called. The receiver
  // may break the connection, which frees all frames in the lane. It may also
  // send on a new lane, which moves all lanes in memory.
  const LaneRef ref = {index, lanes_[index].connection};
  const ProcessId from = lanes_[index].from;
  const ProcessId to = lanes_[index].to;
  const FramePool::Index offered = lanes_[index].oldest;
  const FramePool::Index next = frames_.next(offered);
  lanes_[index].oldest = next;
  const bool last_left = lanes_[index].left == offered;
  if (last_left) lanes_[index].left = kNone;
  const Frame& frame = frames_.frame(offered);
  const bool accepted = deliver_(from, to, frame);
  if (accepted) {
    ++frames_delivered_;
    if (options_.computes_digest) Digest(to, frame);
  }
  const int64_t bytes = WireBytes(frame);
  if (accepted || !IsCurrent(ref)) frames_.Free(offered);
  if (!IsCurrent(ref)) return true;
  Lane& lane = lanes_[index];
  if (!accepted) {
    frames_.next(offered) = lane.oldest;
    lane.oldest = offered;
    if (last_left) lane.left = offered;
    return false;
  }
  lane.flight_bytes -= bytes;
  TakeTurnToLeave(index);
  return true;
}

void SimulatedNetwork::OfferAgain(ProcessId to) {
  auto next = waiting_.lower_bound({to, std::numeric_limits<int>::min()});
  while (next != waiting_.end() && next->first == to) {
    const Direction key = *next;
    const LaneIndex index = LaneOf({key.second, to});
    const LaneRef ref = {index, lanes_[index].connection};
    bool gone = true;
    while (gone && IsCurrent(ref) &&
           lanes_[index].oldest != lanes_[index].arriving) {
      gone = OfferOldest(index);
    }
    if (gone) waiting_.erase(key);
    next = waiting_.upper_bound(key);
  }
}

// Connections, and the digest.

void SimulatedNetwork::Break(ProcessId a, ProcessId b) {
  for (const Direction& direction : {Direction{a, b}, Direction{b, a}}) {
    Lane& lane = lanes_[LaneOf(direction)];
    ++lane.connection;
    lane.broken = true;
    for (FramePool::Index each = lane.oldest; each != kNone;) {
      const FramePool::Index next = frames_.next(each);
      frames_.Free(each);
      each = next;
    }
    lane.oldest = lane.arriving = lane.left = lane.leaving = kNone;
    lane.newest = kNone;
    lane.arrived = 0;
    lane.flight_bytes = 0;
    waiting_.erase({direction.second, direction.first});
  }
}

void SimulatedNetwork::Connect(ProcessId from, ProcessId to) {
  lanes_[LaneOf({from, to})].broken = false;
}

void SimulatedNetwork::Digest(ProcessId to, const Frame& frame) {
  uint8_t header[kFrameHeaderBytes];
  EncodeFrameHeader(frame.header, header);
  // Leaves out the checksum at the end of the header: a CRC over data and the
  // data's own CRC is the same for all data.
  uint32_t crc = Crc32c(header, sizeof(header) - sizeof(uint32_t));
  if (frame.payload.data() != nullptr) {
    crc = ExtendCrc32c(crc, frame.payload.data(),
                       static_cast<size_t>(frame.payload.bytes()));
  }
  const int64_t time = absl::ToUnixNanos(events_->now());
  crc = ExtendCrc32c(crc, &time, sizeof(time));
  crc = ExtendCrc32c(crc, &to, sizeof(to));
  // FNV-1a, with a frame's CRC in the place of a byte.
  digest_ = (digest_ ^ crc) * 0x100000001b3;
}

}  // namespace nereus
