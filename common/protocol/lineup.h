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
  // Number of the worker's host, given by the coordinator; -1: a host of its
  // own.
  int32_t host = -1;

  bool operator==(const EpochWorker&) const = default;
};

// Workers that contribute to a round, ordered by host. Hosts are ordered by the
// lowest rank on them and numbered from 0; the workers of a host are ordered by
// rank. All members derive the same line-up from the job, so neither hosts nor
// numbers of workers travel in frames.
//
// Example: workers 0 and 2 run on one host, worker 1 on another. Host 0 has the
// ranks 0 and 2, host 1 the rank 1, and the seats 0, 1, 2 are those of the
// workers 0, 2, 1. With one worker on each host, host, seat and position of a
// worker are the same number.
//
// A line-up must be that of the round, not that of the epoch: a worker that
// joins has no seat before its first step, and carriers chosen with it would
// wait for contributions that never come.
//
// Immutable: any thread. Bounded by kWorkersMax.
class Lineup {
 public:
  // Makes the line-up of no workers.
  Lineup() = default;
  // Makes the line-up of `workers`. REQUIRES: ranks ascend.
  explicit Lineup(absl::Span<const EpochWorker> workers);

  // Returns the line-up of ranks 0 to `workers` - 1, each on a host of its own.
  static Lineup Singles(int workers);

  // Returns the line-up of the first `workers` of this one, by rank. The two
  // share memory. Hosts keep their numbers, as a later worker either follows on
  // its host or opens a new one. REQUIRES: 0 <= workers <= this->workers().
  Lineup First(int workers) const;

  // Number of workers: the contributors of the round.
  int workers() const { return workers_; }
  // Number of hosts with workers.
  int hosts() const { return hosts_; }

  // Returns the ranks of a host's workers, ascending; at least one.
  // REQUIRES: 0 <= host < hosts().
  absl::Span<const int32_t> at(int host) const;

  // Returns the number of the worker's host, or -1 if the worker does not
  // contribute to the round.
  int HostOf(int rank) const;
  // Returns the worker's index in at(HostOf(rank)), or -1 if the worker does
  // not contribute.
  int LocalOf(int rank) const;
  // Returns the worker's index among all workers, host by host, or -1 if the
  // worker does not contribute. Takes time in proportion to hosts().
  int SeatOf(int rank) const;

  // True if the worker contributes, and no other worker of its host does.
  bool IsAlone(int rank) const {
    const int host = HostOf(rank);
    return host >= 0 && at(host).size() == 1;
  }

  // Returns the rank of the worker of `host` that is its carrier of a unit:
  // the worker that speaks for the host. `slot` spreads units over workers
  // (Job::SlotOf). REQUIRES: 0 <= host < hosts(), slot >= 0.
  int32_t Carrier(int host, int64_t slot) const {
    const absl::Span<const int32_t> local = at(host);
    return local[slot % std::ssize(local)];
  }

 private:
  // Place of a worker.
  struct Place {
    int32_t rank = 0;   // Rank of the worker.
    int32_t host = 0;   // Number of its host.
    int32_t local = 0;  // Index among the workers of the host.
  };

  // Order of the workers of an epoch, shared by its line-ups.
  struct Order {
    std::vector<Place> places;                // Places of workers, by rank.
    std::vector<std::vector<int32_t>> hosts;  // Ranks on each host, ascending.
  };

  // Returns the place of a worker; nullptr if the worker does not contribute.
  const Place* Find(int rank) const;

  std::shared_ptr<const Order> order_;  // nullptr: no workers.
  int workers_ = 0;  // The first ones in order_->places belong to this line-up.
  int hosts_ = 0;    // The first ones in order_->hosts have workers.
};

// Line-ups of all rounds of an epoch, and the slots by which the workers of a
// host share the chunks of a layer. MakeJob makes it; each member derives the
// same one. Within an epoch workers change only at first steps, so there is one
// line-up for each distinct first step.
//
// Immutable: any thread. Its size is in proportion to the number of workers, at
// most kWorkersMax, plus the number of chunks.
class Seating {
 public:
  // Makes the seating of no workers.
  Seating() = default;

  // Makes the seating of `workers`, which have `layers`, cut into chunks by
  // `placement`. REQUIRES: ranks and first steps ascend.
  Seating(absl::Span<const EpochWorker> workers,
          absl::Span<const LayerSpec> layers, const Placement& placement);

  // Returns the line-up of `round`. Before the first step of all workers it is
  // empty.
  const Lineup& LineupOf(int64_t round) const;

  // Returns the slot of a chunk: the local worker with this number, modulo the
  // number of workers of a host, carries the chunk on each host. Slots spread
  // bytes, not counts: among the layers without factors, and among the others,
  // the loads of two workers of a host differ by at most one full chunk.
  // REQUIRES: the layer has the chunk.
  int64_t SlotOf(int layer, int64_t chunk) const;

 private:
  std::vector<int64_t> first_steps_;  // Distinct first steps, ascending.
  // Line-up of no workers, then the line-up from each first step on: one more
  // than first_steps_.
  std::vector<Lineup> lineups_ = {Lineup()};
  // Slot of each chunk, by layer and index. Empty if no host has two workers:
  // then a host's only worker carries everything.
  std::vector<std::vector<int64_t>> slots_;
};

}  // namespace nereus
