#include "tests/simulation/simulated_connections.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/driver/wire_values.h"
#include "common/protocol/connections.h"
#include "tests/simulation/frame_watch.h"

// A frame goes through Transmit at its sender, the network, and Deliver at its
// receiver. Deliver is called again if the receiver's machine was not ready.
// Land then hands the frame to the machine. A fault calls Break: the network
// drops the frames under way, and Lose runs at each end.

namespace nereus {
namespace {

// Time after which a worker gives up a mate that it cannot connect to, and the
// pause between two attempts.
const absl::Duration kReachTime = absl::Seconds(5);
const absl::Duration kPause = absl::Milliseconds(500);

}  // namespace

SimulatedConnections::SimulatedConnections(uint64_t network_seed,
                                           SimulatedWorld* world,
                                           SimulatedPartition* partition)
    : world_(world),
      partition_(partition),
      network_(world->options.network, network_seed, &world->events,
               [this](ProcessId from, ProcessId to, const Frame& frame) {
                 return Deliver(from, to, frame);
               }),
      node_bytes_(std::max(world->options.workers, world->options.shards), 0) {}

// ---- Frames.

void SimulatedConnections::Transmit(SimulatedProcess& from, PeerId to,
                                    const Frame& frame) {
  const EpochStart& start = *from.start();
  const auto receiver = FindProcess(start, to);
  NEREUS_CHECK(receiver.has_value()) << PeerName(to) << " is no member";
  const auto nodes = static_cast<int>(node_bytes_.size());
  const int self = start.self.rank;
  if (self != to.rank && self < nodes && to.rank < nodes) {
    const int64_t bytes = kFrameHeaderBytes + frame.header.payload_bytes;
    node_bytes_[self] += bytes;
    node_bytes_[to.rank] += bytes;
  }
  Frame sent = frame;
  EncodePayload(sent);
  // Real transports do not compute a checksum anew either, if it is set
  // already.
  if (sent.header.payload_crc == 0) {
    sent.header.payload_crc =
        Crc32c(sent.payload.data(), static_cast<size_t>(sent.payload.bytes()));
  }
  sent.priority = start.job->SendPriority(frame.header);
  sent.fused = start.job->fuses();
  if (apart_.contains({from.id, *receiver})) {
    waiting_[{from.id, *receiver}].push_back(sent);
  } else {
    network_.Send(from.id, *receiver, sent);
  }
  from.breaks_now = from.breaks_now || from.breaks_after_send == receiver;
}

bool SimulatedConnections::Deliver(ProcessId from, ProcessId to,
                                   const Frame& frame) {
  SimulatedProcess& receiver = world_->processes[to];
  if (!receiver.alive) return true;
  const bool is_held_up =
      partition_->Separates(from, to) || cut_.contains({from, to});
  if (receiver.is_halted() || is_held_up) return false;
  const auto landing =
      receiver.member->OnHeader(frame.header.sender, frame.header);
  if (!landing.ok()) {
    world_->laws.Tell(FrameRefused{from, to, landing.status()});
    return true;
  }
  if (landing->kind == Landing::Kind::kWait) return false;
  if (BreaksHere({from, to})) {
    LoseRestOfFrame({from, to}, frame, landing->place);
    return true;
  }
  if (landing->kind == Landing::Kind::kDiscard) return true;
  if (Land(receiver, from, frame, *landing)) {
    WatchFrame(*world_, from, to, frame.header);
  }
  return true;
}

bool SimulatedConnections::Land(SimulatedProcess& receiver, ProcessId from,
                                const Frame& frame, const Landing& landing) {
  const bool is_encoded = IsEncoded(frame.header);
  Frame received{frame.header, landing.place};
  if (landing.kind == Landing::Kind::kScratch || is_encoded) {
    received.payload = Buffer::Allocate(frame.payload.bytes());
  }
  if (frame.payload.bytes() > 0) {
    std::memcpy(received.payload.data(), frame.payload.data(),
                static_cast<size_t>(frame.payload.bytes()));
  }
  const absl::Status intact = CheckPayload(received.header, received.payload);
  if (!intact.ok()) {
    // A sender that has left the epoch may have reused the memory. The receiver
    // will then enter the next epoch too, and drop this frame.
    const SimulatedProcess& sender = world_->processes[from];
    if (sender.alive && sender.start()->job->epoch == frame.header.epoch) {
      world_->laws.Tell(FrameSpoiled{from, receiver.id, intact});
    }
    return false;
  }
  // The machine decodes a payload that lands in scratch.
  if (is_encoded && landing.kind == Landing::Kind::kPlace) {
    DecodePayload(frame.header, received.payload, landing.place);
    received.payload = landing.place;
  }
  Outbox out;
  receiver.member->OnFrame(frame.header.sender, received, out);
  world_->execute(receiver, out);
  return true;
}

// ---- How connections are made, and how they break.

void SimulatedConnections::Follow(SimulatedProcess& process,
                                  const EpochStart& start) {
  std::set<ProcessId>& lost = lost_[process.id];
  for (const PeerId dropped : ConnectionsOf(start).dropped) {
    const auto peer = FindProcess(start, dropped);
    if (!peer.has_value()) continue;
    ++renewed_count_[{process.id, *peer}];
    lost.insert(*peer);
  }
  const ProcessId self = process.id;
  std::erase_if(apart_, [&](Direction each) { return each.first == self; });
  std::erase_if(waiting_, [&](auto& each) { return each.first.first == self; });
  for (const ProcessId peer : std::exchange(lost, {})) {
    if (IsCut(self, peer)) {
      KeepApart(self, start, peer);
    } else {
      network_.Connect(self, peer);
      EndApart(peer, self);  // The peer may have followed before Mend.
    }
  }
  MeetMates(process, start);
}

void SimulatedConnections::MeetMates(SimulatedProcess& process,
                                     const EpochStart& start) {
  for (const EpochMember& member : start.epoch_members) {
    if (!AreMates(*start.job, start.self, member.id)) continue;
    const ProcessId peer = *FindProcess(start, member.id);
    if (AreKeptApart(process.id, peer)) {
      network_.Break(process.id, peer);
      KeepApart(process.id, start, peer);
      were_apart_.insert({process.id, peer});
    } else if (!apart_.contains({process.id, peer})) {
      met_.insert(std::minmax(process.id, peer));
      process.member->OnConnected(member.id);
    }
  }
}

bool SimulatedConnections::AreKeptApart(ProcessId a, ProcessId b) const {
  return !met_.contains(std::minmax(a, b)) &&
         (unreachable_.contains(a) || unreachable_.contains(b));
}

// The end that dials tries on through the epochs until it gives up.
void SimulatedConnections::KeepApart(ProcessId self, const EpochStart& start,
                                     ProcessId peer) {
  lost_[self].insert(peer);
  apart_.insert({self, peer});
  const std::vector<EpochMember> dialled = ConnectionsOf(start).dialled;
  const bool dials = absl::c_any_of(dialled, [&](const EpochMember& member) {
    return FindProcess(start, member.id) == peer;
  });
  // If the peer has followed before the connection was cut, it counts itself
  // as connected, and does not try.
  const bool tries = dials || !apart_.contains({peer, self});
  if (!tries || !trying_.insert({self, peer}).second) return;
  TryAgain(self, peer, world_->events.now());
}

void SimulatedConnections::EndApart(ProcessId self, ProcessId peer) {
  if (apart_.erase({self, peer}) == 0) return;
  lost_[self].erase(peer);
  network_.Connect(self, peer);
  const auto waiting = waiting_.extract({self, peer});
  if (waiting.empty()) return;
  for (const Frame& frame : waiting.mapped()) network_.Send(self, peer, frame);
}

void SimulatedConnections::TryAgain(ProcessId self, ProcessId peer,
                                    absl::Time since) {
  const bool mended = !IsCut(self, peer) && !AreKeptApart(self, peer);
  if (!apart_.contains({self, peer}) || mended) {
    trying_.erase({self, peer});
    if (!mended) return;
    EndApart(self, peer);
    return EndApart(peer, self);
  }
  world_->Disturb();
  SimulatedProcess& process = world_->processes[self];
  const absl::Duration reach_time =
      IsCut(self, peer) ? world_->options.lease : kReachTime;
  if (world_->events.now() - since < reach_time) {
    return process.RunAfter(
        world_->events, kPause + world_->Draw(kPause),
        [this, self, peer, since] { TryAgain(self, peer, since); });
  }
  trying_.erase({self, peer});
  const EpochStart& start = *process.start();
  for (const EpochMember& member : start.epoch_members) {
    if (FindProcess(start, member.id) != peer) continue;
    Outbox out;
    process.member->OnLostPeer(member.id, "refused", out);
    return world_->execute(process, out);
  }
}

void SimulatedConnections::Cut(ProcessId from, ProcessId to) {
  world_->Disturb();
  cut_[{from, to}] = world_->events.now();
  WatchCut({from, to}, world_->events.now());
}

void SimulatedConnections::Mend(ProcessId from, ProcessId to) {
  world_->Disturb();
  cut_.erase({from, to});
  if (world_->processes.alive(to)) network_.OfferAgain(to);
}

// A process that stands still does not notice silence.
void SimulatedConnections::WatchCut(Direction direction, absl::Time since) {
  const auto found = cut_.find(direction);
  if (found == cut_.end() || found->second != since) return;
  const auto& [from, to] = direction;
  const bool notices = world_->events.now() - since >= world_->options.lease &&
                       world_->processes.alive(from) &&
                       world_->processes.alive(to) &&
                       !world_->processes[to].is_halted();
  if (notices) Break(from, to);
  world_->events.After(world_->options.lease / 4, [this, direction, since] {
    WatchCut(direction, since);
  });
}

bool SimulatedConnections::AreConnected(ProcessId a, ProcessId b) const {
  const auto knows = [&](ProcessId self, ProcessId peer) {
    const EpochStart* own = world_->processes[self].start();
    const EpochStart* other = world_->processes[peer].start();
    return own != nullptr && other != nullptr &&
           FindProcess(*own, other->self) == peer;
  };
  return a != b && (knows(a, b) || knows(b, a));
}

void SimulatedConnections::Break(ProcessId a, ProcessId b) {
  if (!AreConnected(a, b) || AreApart(a, b)) return;
  world_->Disturb();
  network_.Break(a, b);
  frames_to_break_.erase({a, b});
  frames_to_break_.erase({b, a});
  Lose(a, b);
  Lose(b, a);
}

void SimulatedConnections::BreakAll(ProcessId process) {
  for (const auto& other : world_->processes.all()) {
    if (other->alive) Break(process, other->id);
  }
}

void SimulatedConnections::Lose(ProcessId self, ProcessId peer) {
  const PeerId id = world_->processes[peer].start()->self;
  const auto lose = [this, self, peer, id,
                     then = renewed_count_[{self, peer}]] {
    if (renewed_count_[{self, peer}] > then) return;
    SimulatedProcess& process = world_->processes[self];
    lost_[self].insert(peer);
    Outbox out;
    process.member->OnLostPeer(id, "it was reset", out);
    world_->execute(process, out);
  };
  const absl::Duration delay = world_->Draw(world_->options.network.delay_max);
  world_->events.After(delay, [this, self, peer, lose] {
    const auto hear = [this, self, lose] { world_->processes[self].Run(lose); };
    // A process on the other side of a partition hears of a death when the
    // partition ends.
    if (world_->processes.alive(peer)) {
      hear();
    } else {
      partition_->WhenTogether(peer, self, hear);
    }
  });
}

void SimulatedConnections::BreakInFrame(ProcessId from, ProcessId to,
                                        int frames) {
  if (AreConnected(from, to)) frames_to_break_[{from, to}] = frames;
}

bool SimulatedConnections::BreaksHere(Direction direction) {
  const auto found = frames_to_break_.find(direction);
  if (found == frames_to_break_.end()) return false;
  return found->second-- == 0;
}

void SimulatedConnections::LoseRestOfFrame(Direction direction,
                                           const Frame& frame,
                                           const Buffer& place) {
  const int64_t bytes = std::min(place.bytes(), frame.payload.bytes() / 2);
  if (bytes > 0) {
    std::memcpy(place.data(), frame.payload.data(), static_cast<size_t>(bytes));
  }
  Break(direction.first, direction.second);
}

}  // namespace nereus
