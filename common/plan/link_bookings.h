#pragma once

#include <cstddef>
#include <vector>

#include "common/plan/cost_model.h"
#include "common/plan/time_model.h"
#include "common/plan/wire_type.h"

namespace nereus {

// Occupies a resource for `seconds`, beginning at `now` or at `free_at`,
// whichever is later. Sets `free_at` to the time when the resource is free
// again, and returns it.
double Occupy(double now, double seconds, double& free_at);

// Times at which the values of a transfer begin to arrive, and at which the
// last ones have arrived, in seconds from the iteration's start.
struct Arrival {
  double first = 0;
  double last = 0;
};

// Bookings of the links of all hosts, and of the memory of host 0, during one
// iteration of a Timeline. A link has two sides, out and in. Each side, and the
// memory, carries one transfer at a time, in the order of the calls. A booking
// is for a whole transfer and not for single frames: it moves the time at which
// a side is free again.
//
// Times are seconds from the iteration's start. The order of the calls is the
// order of sending: a transfer waits behind all that were booked before it,
// even if it is ready earlier. Not thread-safe. An object holds a few numbers
// for each host and shard.
class LinkBookings {
 public:
  // Members are on the hosts that ClusterShape gives them. All links have the
  // speed `link`. `memory_rate`: bytes per second through the memory of a host.
  // `fuses`: true if transfers that wait for the same peer share messages.
  LinkBookings(const ClusterShape& cluster, const LinkSpeed& link,
               double memory_rate, bool fuses);

  // Book a transfer of `elements` values, ready at `now`: ToShard from every
  // host with workers to `shard`, FromShard from the shard to every host with
  // workers. The shard's own host uses no link. If it is host 0, its memory is
  // booked; on another host the values take no time. ToShard returns the time
  // when the last value has arrived.
  double ToShard(double now, size_t shard, double elements, WireType wire);
  Arrival FromShard(double now, size_t shard, double elements, WireType wire);

  // Books a transfer of `elements` values that each host with workers sends
  // `times` times and receives `times` times. The arrival lacks the latency,
  // which the caller adds.
  Arrival AmongHosts(double now, double times, double elements, WireType wire);

  // Books `hops` hops around the ring of hosts, of `elements` values each.
  // `halves`: 2 if the hops make the sums and then spread the means, so that
  // the first means arrive after half of the hops; 1 for one of the two.
  Arrival AroundRing(double now, int halves, double hops, double elements,
                     WireType wire);

  // Books the memory of host 0 for a transfer that is ready at `now`: each of
  // its workers but one sends, or receives, `elements` values.
  Arrival WithinHost(double now, double elements, WireType wire);
  // Returns the seconds of such a transfer, without the wait for the memory.
  double WithinHostSeconds(double elements, WireType wire) const;

  // Latency of a link, in seconds.
  double latency() const;

 private:
  // Returns the seconds that one side of a link takes for a transfer. `joins`:
  // true if the transfer shares the message of an earlier transfer. Without
  // fusion, each frame is a message of its own.
  double Carry(double elements, WireType wire, bool joins) const;
  // True if a transfer that is ready now shares the message that leaves at
  // `leaves`.
  bool Joins(double now, double leaves) const;
  double message_seconds() const;
  // Returns the seconds in which `elements` values pass through memory once.
  double MemorySeconds(double elements, WireType wire) const;
  // Occupies the memory of host 0. A memory without limit is never occupied.
  Arrival OccupyMemory(double now, double seconds);

  const ClusterShape cluster_;  // Numbers of workers, servers and hosts.
  const size_t hosts_;          // Number of hosts with workers.
  const LinkSpeed link_;        // Speed of every link.
  const double memory_rate_;    // Bytes per second through memory.
  const double mates_;          // Number of workers of host 0, less one.
  const bool fuses_;            // True if transfers share messages.
  std::vector<double> out_;     // Time when each host's sending side is free.
  std::vector<double> in_;      // Time when each host's receiving side is free.
  // Time when the last message to each shard begins to leave. With fusion, a
  // transfer that is ready before that time joins the message.
  std::vector<double> pushes_leave_;
  // Time when the last message from each shard begins to leave; see above.
  std::vector<double> results_leave_;
  // Time when the last message between workers of different hosts has left. A
  // transfer may join this message until then.
  double peers_leave_ = 0;
  double memory_ = 0;  // Time when the memory of host 0 is free.
};

}  // namespace nereus
