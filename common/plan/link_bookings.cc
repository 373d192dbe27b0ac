#include "common/plan/link_bookings.h"

#include <algorithm>
#include <cmath>

namespace nereus {
namespace {

// Sizes of frames (common/protocol/frame.h).
constexpr double kFrameElements = 65536;
constexpr double kHeaderBytes = 64;
// Length of a full message, in bytes: the length of the longest frame. Fused
// frames share messages of at most this length.
constexpr double kMessageBytes = kFrameElements * 4 + kHeaderBytes;

}  // namespace

double Occupy(double now, double seconds, double& free_at) {
  free_at = std::max(free_at, now) + seconds;
  return free_at;
}

LinkBookings::LinkBookings(const ClusterShape& cluster, const LinkSpeed& link,
                           double memory_rate, bool fuses)
    : cluster_(cluster),
      hosts_(static_cast<size_t>(cluster.worker_hosts())),
      link_(link),
      memory_rate_(memory_rate),
      mates_(static_cast<double>(cluster.host_workers_most() - 1)),
      fuses_(fuses),
      out_(std::max(cluster.worker_hosts(),
                    cluster.HostOfServer(cluster.servers - 1) + 1),
           0.0),
      in_(out_.size(), 0.0),
      pushes_leave_(cluster.servers, 0.0),
      results_leave_(cluster.servers, 0.0) {}

double LinkBookings::message_seconds() const {
  return absl::ToDoubleSeconds(link_.message_time);
}

double LinkBookings::latency() const {
  return absl::ToDoubleSeconds(link_.latency);
}

bool LinkBookings::Joins(double now, double leaves) const {
  return fuses_ && now < leaves;
}

double LinkBookings::Carry(double elements, WireType wire, bool joins) const {
  // A transfer without values is one frame without payload.
  const double frames = std::max(1.0, std::ceil(elements / kFrameElements));
  const double bytes =
      elements * static_cast<double>(WireBytes(wire)) + frames * kHeaderBytes;
  double messages = frames;
  if (fuses_) {
    // A transfer that joins a message pays only for its share of the message.
    // Other transfers pay for whole messages.
    messages = bytes / kMessageBytes;
    if (!joins) messages = std::ceil(messages);
  }
  return bytes / link_.rate + messages * message_seconds();
}

double LinkBookings::MemorySeconds(double elements, WireType wire) const {
  return elements * static_cast<double>(WireBytes(wire)) / memory_rate_;
}

double LinkBookings::WithinHostSeconds(double elements, WireType wire) const {
  return mates_ * MemorySeconds(elements, wire);
}

Arrival LinkBookings::OccupyMemory(double now, double seconds) {
  if (seconds == 0) return {now, now};
  const double last = Occupy(now, seconds, memory_);
  return {last - seconds, last};
}

Arrival LinkBookings::WithinHost(double now, double elements, WireType wire) {
  return OccupyMemory(now, WithinHostSeconds(elements, wire));
}

double LinkBookings::ToShard(double now, size_t shard, double elements,
                             WireType wire) {
  const auto own = static_cast<size_t>(cluster_.HostOfServer(shard));
  double& leaves = pushes_leave_[shard];
  const bool joins = Joins(now, leaves);
  const double seconds = Carry(elements, wire, joins);
  double there = now;
  size_t senders = 0;
  for (size_t host = 0; host < hosts_; ++host) {
    if (host == own) continue;
    if (!joins) leaves = std::max({leaves, now, out_[host]});
    there = std::max(there, Occupy(now, seconds, out_[host]));
    ++senders;
  }
  // The shard's host receives one transfer after the other, so its side is busy
  // for the sum of their times.
  if (senders > 0) {
    const double all = static_cast<double>(senders) * seconds;
    there = std::max(there, Occupy(now, all, in_[own])) + latency();
  }
  if (own == 0) {
    const double local = MemorySeconds(elements, wire);
    there = std::max(there, OccupyMemory(now, local).last);
  }
  return there;
}

Arrival LinkBookings::FromShard(double now, size_t shard, double elements,
                                WireType wire) {
  const auto own = static_cast<size_t>(cluster_.HostOfServer(shard));
  double& leaves = results_leave_[shard];
  const bool joins = Joins(now, leaves);
  if (!joins) leaves = std::max(now, out_[own]);
  const double seconds = Carry(elements, wire, joins);
  Arrival there = {now, now};
  size_t receivers = 0;
  for (size_t host = 0; host < hosts_; ++host) {
    if (host == own) continue;
    there.last = std::max(there.last, Occupy(now, seconds, in_[host]));
    ++receivers;
  }
  if (receivers > 0) {
    const double all = static_cast<double>(receivers) * seconds;
    there.first = std::max(now, out_[own]) + latency();
    there.last = std::max(there.last, Occupy(now, all, out_[own])) + latency();
  }
  if (own == 0) {
    const double local = MemorySeconds(elements, wire);
    there.last = std::max(there.last, OccupyMemory(now, local).last);
  }
  return there;
}

Arrival LinkBookings::AmongHosts(double now, double times, double elements,
                                 WireType wire) {
  const double seconds =
      times * Carry(elements, wire, Joins(now, peers_leave_));
  Arrival there = {now, now};
  for (size_t host = 0; host < hosts_; ++host) {
    there.first = std::max({there.first, out_[host], in_[host]});
    there.last = std::max({there.last, Occupy(now, seconds, out_[host]),
                           Occupy(now, seconds, in_[host])});
    peers_leave_ = std::max(peers_leave_, out_[host]);
  }
  return there;
}

// Each hop begins when the hop before it has arrived, so the latency counts
// once for each hop. The first layer of a shared message books the message's
// time. A layer that joins the message books no whole message, but waits for
// the message on each hop.
Arrival LinkBookings::AroundRing(double now, int halves, double hops,
                                 double elements, WireType wire) {
  const bool joins = Joins(now, peers_leave_);
  Arrival there = AmongHosts(now, hops, elements, wire);
  there.last += hops * latency();
  if (joins) there.last += hops * message_seconds();
  if (halves == 2) there.first = (there.first + there.last) / 2;
  return there;
}

}  // namespace nereus
