#pragma once

#include <cstddef>
#include <vector>

#include "common/plan/cost_model.h"
#include "common/plan/link_speed.h"
#include "common/plan/wire_type.h"

namespace nereus {

// Occupies a resource for `seconds`, from `now` on or when it is free. Returns
// the time when it is free again; `free_at` is set to it.
double Occupy(double now, double seconds, double& free_at);

// Bookings of the links of all hosts during one iteration of a Timeline. A
// link has two sides, out and in; each carries one transfer at a time, in the
// order of the calls. A booking moves the time at which a side is free, so a
// transfer is booked as a whole and not frame by frame.
//
// Times are seconds from the iteration's start. Callers must book in the order
// in which transfers become ready: a booking that comes too late waits behind
// transfers that it should have overtaken. One thread. Memory: a few numbers
// for each host and shard. What passes within a host books nothing.
class LinkBookings {
 public:
  // Hosts have the workers and shards that ClusterShape gives them. All links
  // have the speed `link`, which is copied. `fuses`: transfers that wait for
  // the same peer share messages.
  LinkBookings(const ClusterShape& cluster, const LinkSpeed& link, bool fuses);

  // Books a transfer of `elements` values from every host with workers to
  // `shard`, or from that shard to every such host. Returns the time when all
  // of it has arrived. Within the shard's own host nothing travels.
  double ToShard(double now, size_t shard, double elements, WireType wire);
  double FromShard(double now, size_t shard, double elements, WireType wire);

  // Books a transfer that each host with workers sends, and receives, `times`
  // times. Returns the time when all of it has left and is received, without
  // latency.
  double AmongHosts(double now, double times, double elements, WireType wire);

  // Books `hops` hops around the ring of hosts. Returns the time when the
  // last one has arrived.
  double AroundRing(double now, double hops, double elements, WireType wire);

  // Latency of a link, in seconds.
  double latency() const;

 private:
  // Returns the seconds that one side of a link takes for a transfer.
  // `joins`: it shares the message of another transfer. Without fusion each
  // frame is a message.
  double Carry(double elements, WireType wire, bool joins) const;
  // True if a transfer that is ready now shares the message that leaves at
  // `leaves`.
  bool Joins(double now, double leaves) const;
  double message_seconds() const;

  const ClusterShape cluster_;  // Host of each shard.
  const size_t hosts_;          // Number of hosts with workers.
  const LinkSpeed link_;        // Speed of every link.
  const bool fuses_;            // True if transfers share messages.
  std::vector<double> out_;     // Time when each host's sending side is free.
  std::vector<double> in_;      // Time when each host's receiving side is free.
  // Time when the last message to each shard begins to leave. A later transfer
  // to the shard joins it until then.
  std::vector<double> pushes_leave_;
  // Time when the last message from each shard begins to leave.
  std::vector<double> results_leave_;
  // Time when the last message between hosts' workers has left.
  double peers_leave_ = 0;
};

}  // namespace nereus
