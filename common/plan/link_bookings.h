#pragma once

#include <cstddef>
#include <vector>

#include "common/plan/cost_model.h"
#include "common/plan/link_speed.h"
#include "common/plan/wire_type.h"

namespace nereus {

// Occupies a resource for `seconds`, beginning at `now` or at `free_at`,
// whichever is later. Sets `free_at` to the time when the resource is free
// again, and returns it.
double Occupy(double now, double seconds, double& free_at);

// Bookings of the links of all hosts during one iteration of a Timeline. A link
// has two sides, out and in. Each side carries one transfer at a time, in the
// order of the calls. A booking is for a whole transfer and not for single
// frames: it moves the time at which a side is free again.
//
// Times are seconds from the iteration's start. Callers must book transfers in
// the order in which they become ready. Otherwise a transfer waits behind
// transfers that became ready after it. Values that stay within a host book
// nothing. Not thread-safe. Memory: a few numbers for each host and shard.
class LinkBookings {
 public:
  // Members are on the hosts that ClusterShape gives them. All links have the
  // speed `link`. `fuses`: true if transfers that wait for the same peer share
  // messages.
  LinkBookings(const ClusterShape& cluster, const LinkSpeed& link, bool fuses);

  // Book a transfer of `elements` values, ready at `now`: ToShard from every
  // host with workers to `shard`, FromShard from the shard to every host with
  // workers. The shard's own host needs no transfer. Return the time when the
  // last transfer has arrived.
  double ToShard(double now, size_t shard, double elements, WireType wire);
  double FromShard(double now, size_t shard, double elements, WireType wire);

  // Books a transfer of `elements` values that each host with workers sends
  // `times` times and receives `times` times. Returns the time when all links
  // have carried these transfers, without the latency.
  double AmongHosts(double now, double times, double elements, WireType wire);

  // Books `hops` hops around the ring of hosts, of `elements` values each.
  // Returns the time when the last hop has arrived.
  double AroundRing(double now, double hops, double elements, WireType wire);

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

  const ClusterShape cluster_;  // Numbers of workers, servers and hosts.
  const size_t hosts_;          // Number of hosts with workers.
  const LinkSpeed link_;        // Speed of every link.
  const bool fuses_;            // True if transfers share messages.
  std::vector<double> out_;     // Time when each host's sending side is free.
  std::vector<double> in_;      // Time when each host's receiving side is free.
  // Time when the last message to each shard begins to leave. With fusion, a
  // transfer that is ready before that time joins the message.
  std::vector<double> pushes_leave_;
  // Time when the last message from each shard begins to leave; see above.
  std::vector<double> results_leave_;
  // Time when the last message from workers to workers of other hosts has left.
  double peers_leave_ = 0;
};

}  // namespace nereus
