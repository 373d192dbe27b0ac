#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"

namespace nereus {

// A worker of an epoch.
struct EpochWorker {
  int32_t rank = 0;  // Rank of the worker.
  // First step, and first round of every layer, in which the worker takes part.
  int64_t first_step = 0;
  // Number that the coordinator has given the worker's host; -1: the worker
  // counts as a host of its own.
  int32_t host = -1;

  bool operator==(const EpochWorker&) const = default;
};

// Workers that contribute to a round, ordered by host. A line-up has its own
// numbers for hosts, from 0: host 0 has the lowest rank, host 1 has the lowest
// of the other ranks, and so on. The workers of a host are ordered by rank. All
// members derive the same line-up from the job, so frames need not name hosts.
//
// Example: workers 0 and 2 run on one host, worker 1 on another. Host 0 has the
// ranks 0 and 2, host 1 the rank 1, and the seats 0, 1, 2 are those of the
// workers 0, 2, 1. With one worker on each host, host, seat and position of a
// worker are the same number.
//
// A round must be done with its own line-up, which has only the workers that
// contribute to this round. A worker that joins does not contribute before its
// first step. If the line-up of an earlier round had this worker, carriers
// would wait for contributions that never come.
//
// Immutable, so any thread may read it. Bounded by kWorkersMax.
class Lineup {
 public:
  // Makes the line-up of no workers.
  Lineup() = default;
  // Makes the line-up of `workers`. REQUIRES: ranks ascend.
  explicit Lineup(absl::Span<const EpochWorker> workers);

  // Returns the line-up of ranks 0 to `workers` - 1, each on a host of its own.
  static Lineup Singles(int workers);

  // Returns the line-up of the workers with the lowest ranks: as many as
  // `workers`. Both line-ups share memory. Each host has the same number in
  // both, because its number follows from its lowest rank. REQUIRES: 0 <=
  // workers <= this->workers().
  Lineup First(int workers) const;

  // Number of workers: the contributors of the round.
  int workers() const { return workers_; }
  // Number of hosts with workers.
  int hosts() const { return hosts_; }

  // Returns the ranks of a host's workers, ascending; at least one.
  // REQUIRES: 0 <= host < hosts().
  absl::Span<const int32_t> at(int host) const;

  // Returns the number of the worker's host in this line-up, or -1 if the
  // worker does not contribute to the round.
  int HostOf(int rank) const;
  // Returns the worker's index in at(HostOf(rank)), or -1 if the worker does
  // not contribute.
  int LocalOf(int rank) const;
  // Returns the worker's seat: its index among all workers, host by host.
  // Returns -1 if the worker does not contribute. Takes time in proportion to
  // hosts().
  int SeatOf(int rank) const;

  // True if the worker contributes, and no other worker of its host does.
  bool IsAlone(int rank) const {
    const int host = HostOf(rank);
    return host >= 0 && at(host).size() == 1;
  }

  // Returns the rank of the carrier on `host` of a unit with this slot: the
  // worker with index `slot` modulo the number of workers of the host.
  // REQUIRES: 0 <= host < hosts(), slot >= 0.
  int32_t Carrier(int host, int64_t slot) const {
    const absl::Span<const int32_t> local = at(host);
    return local[slot % std::ssize(local)];
  }

 private:
  // Place of a worker in a line-up.
  struct Place {
    int32_t rank = 0;   // Rank of the worker.
    int32_t host = 0;   // Number of the worker's host in the line-up.
    int32_t local = 0;  // Index of the worker among those of the host.
  };

  // Order of all workers of an epoch. All line-ups of the epoch share it.
  struct Order {
    std::vector<Place> places;                // Places, by rank of the worker.
    std::vector<std::vector<int32_t>> hosts;  // Ranks on each host, ascending.
  };

  // Returns the place of a worker; nullptr if the worker does not contribute.
  const Place* Find(int rank) const;

  std::shared_ptr<const Order> order_;  // nullptr: no workers.
  // This line-up has the first workers_ entries of order_->places, and the
  // first hosts_ entries of order_->hosts.
  int workers_ = 0;
  int hosts_ = 0;
};

// Line-ups of all rounds of an epoch, and the slots by which the workers of a
// host share the chunks of a layer. MakeJob makes it on each member, from equal
// data. Within an epoch the contributors change only at the first step of a
// worker, so there is one line-up for each distinct first step.
//
// Immutable, so any thread may read it. Its size is in proportion to the number
// of workers, at most kWorkersMax, plus the number of chunks.
class Seating {
 public:
  // Makes the seating of no workers.
  Seating() = default;

  // Makes the seating of `workers`, which have `layers`, cut into chunks by
  // `placement`. REQUIRES: ranks and first steps ascend.
  Seating(absl::Span<const EpochWorker> workers,
          absl::Span<const LayerSpec> layers, const Placement& placement);

  // Returns the line-up of `round`. It has no workers if `round` is before the
  // first step of every worker.
  const Lineup& LineupOf(int64_t round) const;

  // Returns the slot of a chunk. On each host, the chunk's carrier is the
  // worker whose index on the host is the slot modulo the number of workers of
  // the host. The load of a worker is the number of bytes of its chunks. Within
  // the layers that have no factors, the loads of two workers of a host differ
  // by at most one full chunk; so they do within the layers that have factors.
  // REQUIRES: the layer has the chunk.
  int64_t SlotOf(int layer, int64_t chunk) const;

 private:
  std::vector<int64_t> first_steps_;  // Distinct first steps, ascending.
  // First the line-up of no workers; then, for each entry of first_steps_, the
  // line-up from this step on.
  std::vector<Lineup> lineups_ = {Lineup()};
  // Slot of each chunk, by layer and index. Empty if no host has two workers:
  // then a host's only worker carries everything.
  std::vector<std::vector<int64_t>> slots_;
};

}  // namespace nereus
