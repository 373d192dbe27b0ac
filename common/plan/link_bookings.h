#pragma once

#include <cstddef>
#include <vector>

#include "common/plan/cost_model.h"
#include "common/plan/time_model.h"
#include "common/plan/wire_type.h"

namespace nereus {

// Times at which the values of a transfer begin to arrive, and at which the
// last ones have arrived, in seconds from the iteration's start.
struct Arrival {
  double first = 0;
  double last = 0;
};

// Times at which a resource is free: one side of a link, or a memory. It does
// one thing at a time. What is booked first goes first: a later booking gets
// the times that are left.
//
// Bookings come in the order of their urgency (Timeline), and what is more
// urgent exists later, in backward. So the times before most bookings are free,
// and a booking takes the same time however many there are.
class FreeTimes {
 public:
  // Books `seconds` of the free times from `now` on. Returns when they begin
  // and end. No seconds: `now`, as if the resource were free.
  Arrival Take(double now, double seconds);

 private:
  struct Gap {
    double begin = 0;
    double end = 0;
  };
  // Free times, the latest first; it never ends.
  std::vector<Gap> gaps_ = {Endless()};

  static Gap Endless();
};

// Bookings of the links of all hosts, and of the memory of host 0, during one
// iteration of a Timeline. A link has two sides, out and in. Frames of what is
// booked first go before all frames of what is booked later: the order of the
// calls is that of urgency.
//
// Plays at most kHostsPlayed of the hosts with workers, and as many of those
// with servers alone. Of more hosts, each played one stands for several: it
// carries its share of what goes to their shards.
//
// Not thread-safe. An object holds the free times of each played host's link.
class LinkBookings {
 public:
  // Largest number of hosts of each sort that are played.
  static constexpr int64_t kHostsPlayed = 64;

  // Members are on the hosts that ClusterShape gives them. All links have the
  // speed `link`. `memory_rate`: bytes per second through the memory of a host.
  // `fuses`: true if transfers that wait for the same peer share messages.
  LinkBookings(const ClusterShape& cluster, const LinkSpeed& link,
               double memory_rate, bool fuses);

  // Transfer of `elements` values. `joins`: with fusion, true if it shares the
  // message of an earlier transfer.
  struct Values {
    double elements = 0;
    WireType wire = WireType::kFloat32;
    bool joins = false;
  };

  // Book a transfer that is ready at `now`: ToShard from every host with
  // workers to `shard`, FromShard from the shard to every host with workers.
  // The shard's own host uses no link. If it is host 0, its memory is booked;
  // on another host the values take no time. ToShard returns the time when the
  // last value has arrived.
  double ToShard(double now, size_t shard, const Values& values);
  Arrival FromShard(double now, size_t shard, const Values& values);

  // Books a transfer that each host with workers sends `times` times and
  // receives `times` times. The arrival lacks the latency, which the caller
  // adds.
  Arrival AmongHosts(double now, double times, const Values& values);

  // Books an all-reduce around the ring of hosts: two halves, each of as many
  // hops as there are other hosts. The first half makes the sums, and the
  // second one spreads the means, so the first means arrive after half of the
  // time.
  Arrival AroundRing(double now, const Values& values);

  // Books a transfer of each host with workers to every other one.
  Arrival Directly(double now, const Values& values);

  // Books the memory of host 0 for a transfer that is ready at `now`: each of
  // its workers but one sends, or receives, `elements` values.
  Arrival WithinHost(double now, double elements, WireType wire);
  // Returns the seconds of such a transfer, without the wait for the memory.
  double WithinHostSeconds(double elements, WireType wire) const;

  // Returns the seconds that one side of a link takes for a transfer. Without
  // fusion, each frame is a message of its own.
  double Carry(const Values& values) const;
  // Latency of a link, in seconds.
  double latency() const;

 private:
  // Host that is played for the host of a shard.
  struct Played {
    size_t at = 0;         // Index in out_ and in_.
    double share = 1;      // 1 / number of hosts that it stands for.
    bool sends = true;     // True if the shard's own host has workers.
    bool is_exact = true;  // True if it stands for that host alone.
  };
  Played HostOf(size_t shard) const;
  // Books `seconds` of one host of those that a played host stands for.
  static Arrival TakeShare(const Played& host, double now, double seconds,
                           FreeTimes& side);

  double message_seconds() const;
  // Returns the seconds in which `elements` values pass through memory once.
  double MemorySeconds(double elements, WireType wire) const;

  const ClusterShape cluster_;  // Numbers of workers, servers and hosts.
  const size_t hosts_;          // Number of hosts with workers.
  const size_t played_;         // Number of them that are played.
  const size_t servers_alone_;  // Number of hosts with servers alone.
  const LinkSpeed link_;        // Speed of every link.
  const double memory_rate_;    // Bytes per second through memory.
  const double mates_;          // Number of workers of host 0, less one.
  const bool fuses_;            // True if transfers share messages.
  // Sending and receiving sides of the links of played hosts: those with
  // workers, then those with servers alone.
  std::vector<FreeTimes> out_;
  std::vector<FreeTimes> in_;
  FreeTimes memory_;  // Memory of host 0.
};

}  // namespace nereus
