#include "common/plan/link_bookings.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nereus {
namespace {

// Sizes of frames (common/protocol/frame.h).
constexpr double kFrameElements = 65536;
constexpr double kHeaderBytes = 64;
// Length of a full message, in bytes: the length of the longest frame. Fused
// frames share messages of at most this length.
constexpr double kMessageBytes = kFrameElements * 4 + kHeaderBytes;

}  // namespace

FreeTimes::Gap FreeTimes::Endless() {
  return {0, std::numeric_limits<double>::infinity()};
}

Arrival FreeTimes::Take(double now, double seconds) {
  if (seconds <= 0) return {now, now};
  auto first = gaps_.end() - 1;
  // The last one never ends, but `now` may be infinite: a transfer at a rate
  // near 0 never arrives.
  while (first != gaps_.begin() && first->end <= now) --first;
  const double begin = std::max(now, first->begin);
  const Gap before = {first->begin, begin};
  double from = begin;
  auto last = first;
  for (; last->end - from < seconds; --last, from = last->begin) {
    seconds -= last->end - from;
  }
  const double end = from + seconds;
  last->begin = end;
  // The gaps from `used` to `first` are used up. The time before `begin` is
  // still free.
  const bool is_left = last == gaps_.begin() || last->begin < last->end;
  auto used = is_left ? last + 1 : last;
  if (before.begin < before.end) {
    if (used > first) {
      gaps_.insert(used, before);
      return {begin, end};
    }
    *used++ = before;
  }
  gaps_.erase(used, first + 1);
  return {begin, end};
}

LinkBookings::LinkBookings(const ClusterShape& cluster, const LinkSpeed& link,
                           double memory_rate, bool fuses)
    : cluster_(cluster),
      hosts_(static_cast<size_t>(cluster.worker_hosts())),
      played_(std::min<size_t>(hosts_, kHostsPlayed)),
      servers_alone_(static_cast<size_t>(
          std::max<int64_t>(0, cluster.HostOfServer(cluster.servers - 1) + 1 -
                                   cluster.worker_hosts()))),
      link_(link),
      memory_rate_(memory_rate),
      mates_(static_cast<double>(cluster.host_workers_most() - 1)),
      fuses_(fuses),
      out_(played_ + std::min<size_t>(servers_alone_, kHostsPlayed)),
      in_(out_.size()) {}

LinkBookings::Played LinkBookings::HostOf(size_t shard) const {
  const auto host = static_cast<size_t>(cluster_.HostOfServer(shard));
  Played played;
  played.sends = host < hosts_;
  const size_t all = played.sends ? hosts_ : servers_alone_;
  const size_t some = played.sends ? played_ : out_.size() - played_;
  played.at = played.sends ? host % some : played_ + (host - hosts_) % some;
  played.share = static_cast<double>(some) / static_cast<double>(all);
  played.is_exact = some == all;
  return played;
}

// The transfer takes no less time than it would take alone on its own host.
Arrival LinkBookings::TakeShare(const Played& host, double now, double seconds,
                                FreeTimes& side) {
  Arrival booked = side.Take(now, host.share * seconds);
  booked.last = std::max(booked.last, now + seconds);
  return booked;
}

double LinkBookings::message_seconds() const {
  return absl::ToDoubleSeconds(link_.message_time);
}

double LinkBookings::latency() const {
  return absl::ToDoubleSeconds(link_.latency);
}

double LinkBookings::Carry(const Values& values) const {
  // A transfer without values is one frame without payload.
  const double frames =
      std::max(1.0, std::ceil(values.elements / kFrameElements));
  const double bytes =
      values.elements * static_cast<double>(WireBytes(values.wire)) +
      frames * kHeaderBytes;
  double messages = frames;
  if (fuses_) {
    // A transfer that joins a message pays only for its share of the message.
    // Other transfers pay for whole messages.
    messages = bytes / kMessageBytes;
    if (!values.joins) messages = std::ceil(messages);
  }
  return bytes / link_.rate + messages * message_seconds();
}

double LinkBookings::MemorySeconds(double elements, WireType wire) const {
  return elements * static_cast<double>(WireBytes(wire)) / memory_rate_;
}

double LinkBookings::WithinHostSeconds(double elements, WireType wire) const {
  return mates_ * MemorySeconds(elements, wire);
}

Arrival LinkBookings::WithinHost(double now, double elements, WireType wire) {
  return memory_.Take(now, WithinHostSeconds(elements, wire));
}

double LinkBookings::ToShard(double now, size_t shard, const Values& values) {
  const Played own = HostOf(shard);
  const double seconds = Carry(values);
  double there = now;
  for (size_t host = 0; host < played_; ++host) {
    if (own.is_exact && host == own.at) continue;
    there = std::max(there, out_[host].Take(now, seconds).last);
  }
  // The shard's host receives one transfer after the other, so its side is busy
  // for the sum of their times.
  const size_t senders = hosts_ - (own.sends ? 1 : 0);
  if (senders > 0) {
    const double all = static_cast<double>(senders) * seconds;
    there =
        std::max(there, TakeShare(own, now, all, in_[own.at]).last) + latency();
  }
  if (cluster_.HostOfServer(shard) == 0) {
    const double local = MemorySeconds(values.elements, values.wire);
    there = std::max(there, memory_.Take(now, local).last);
  }
  return there;
}

Arrival LinkBookings::FromShard(double now, size_t shard,
                                const Values& values) {
  const Played own = HostOf(shard);
  const double seconds = Carry(values);
  Arrival there = {now, now};
  for (size_t host = 0; host < played_; ++host) {
    if (own.is_exact && host == own.at) continue;
    there.last = std::max(there.last, in_[host].Take(now, seconds).last);
  }
  const size_t receivers = hosts_ - (own.sends ? 1 : 0);
  if (receivers > 0) {
    const double all = static_cast<double>(receivers) * seconds;
    const Arrival sent = TakeShare(own, now, all, out_[own.at]);
    there.first = sent.first + latency();
    there.last = std::max(there.last, sent.last) + latency();
  }
  if (cluster_.HostOfServer(shard) == 0) {
    const double local = MemorySeconds(values.elements, values.wire);
    there.last = std::max(there.last, memory_.Take(now, local).last);
  }
  return there;
}

Arrival LinkBookings::AmongHosts(double now, double times,
                                 const Values& values) {
  const double seconds = times * Carry(values);
  Arrival there = {now, now};
  for (size_t host = 0; host < played_; ++host) {
    for (FreeTimes* side : {&out_[host], &in_[host]}) {
      const Arrival booked = side->Take(now, seconds);
      there.first = std::max(there.first, booked.first);
      there.last = std::max(there.last, booked.last);
    }
  }
  return there;
}

// Each hop begins when the hop before it has arrived, so the latency counts
// once for each hop. The first layer of a shared message books the message's
// time. With fusion, a layer also waits on each hop for a message that others
// have booked.
Arrival LinkBookings::AroundRing(double now, const Values& values) {
  const double hops = 2 * static_cast<double>(hosts_ - 1);
  Arrival there = AmongHosts(now, hops, values);
  there.last += hops * latency();
  if (fuses_) there.last += hops * message_seconds();
  there.first = (there.first + there.last) / 2;
  return there;
}

// A host has the first sum when the last of the other hosts has sent its first
// values, which is about when it has sent its last ones.
Arrival LinkBookings::Directly(double now, const Values& values) {
  if (hosts_ == 1) return {now, now};
  Arrival there = AmongHosts(now, static_cast<double>(hosts_ - 1), values);
  there.last += latency() + (fuses_ ? message_seconds() : 0);
  there.first = there.last;
  return there;
}

}  // namespace nereus
