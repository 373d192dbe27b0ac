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
                           bool fuses)
    : cluster_(cluster),
      hosts_(static_cast<size_t>(cluster.worker_hosts())),
      link_(link),
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
  return there;
}

double LinkBookings::FromShard(double now, size_t shard, double elements,
                               WireType wire) {
  const auto own = static_cast<size_t>(cluster_.HostOfServer(shard));
  double& leaves = results_leave_[shard];
  const bool joins = Joins(now, leaves);
  if (!joins) leaves = std::max(now, out_[own]);
  const double seconds = Carry(elements, wire, joins);
  double there = now;
  size_t receivers = 0;
  for (size_t host = 0; host < hosts_; ++host) {
    if (host == own) continue;
    there = std::max(there, Occupy(now, seconds, in_[host]));
    ++receivers;
  }
  if (receivers > 0) {
    const double all = static_cast<double>(receivers) * seconds;
    there = std::max(there, Occupy(now, all, out_[own])) + latency();
  }
  return there;
}

double LinkBookings::AmongHosts(double now, double times, double elements,
                                WireType wire) {
  const double seconds =
      times * Carry(elements, wire, Joins(now, peers_leave_));
  double there = now;
  for (size_t host = 0; host < hosts_; ++host) {
    there = std::max({there, Occupy(now, seconds, out_[host]),
                      Occupy(now, seconds, in_[host])});
    peers_leave_ = std::max(peers_leave_, out_[host]);
  }
  return there;
}

// Each hop begins when the hop before it has arrived, so the latency counts
// once for each hop. The first layer of a shared message books the message's
// time. A layer that joins the message books no whole message, but waits for
// the message on each hop.
double LinkBookings::AroundRing(double now, double hops, double elements,
                                WireType wire) {
  const bool joins = Joins(now, peers_leave_);
  double there = AmongHosts(now, hops, elements, wire) + hops * latency();
  if (joins) there += hops * message_seconds();
  return there;
}

}  // namespace nereus
