#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "common/base/random.h"
#include "server/shard/shard.h"
#include "tests/testing/machine_harness.h"
#include "tests/worker/worker_under_test.h"

namespace nereus {

// All workers of a job with one layer, and its shard. The constructor gives
// them the first values. Each connection keeps its order; a seed draws which
// connection delivers next.
class WorkerCluster {
 public:
  // `means_in_place`: that of LayerMemory.
  WorkerCluster(JobPtr job, uint64_t seed, bool means_in_place = true)
      : job_(std::move(job)), random_(seed), shard_(job_, 0) {
    for (const EpochWorker& each : job_->workers) {
      workers_[each.rank] = std::make_unique<WorkerUnderTest>(
          job_, each.rank, /*state_arrays=*/0, means_in_place);
    }
    for (auto& [rank, worker] : workers_) {
      Send(PeerId::Worker(rank), worker->Start());
    }
    Settle();
  }

  const Job& job() const { return *job_; }
  WorkerUnderTest& worker(int rank) { return *workers_.at(rank); }
  // Gradient that a worker pushed last.
  const Buffer& gradient(int rank) const { return gradients_.at(rank); }
  // Mean of the last round of a worker (LayerDone::mean).
  Buffer mean(int rank) { return means_[rank]; }

  void Push(int rank, int64_t round, Buffer gradient) {
    gradients_[rank] = std::move(gradient);
    Send(PeerId::Worker(rank), worker(rank).Push(round, gradients_[rank]));
  }
  void Wait(int rank) {
    Outbox out;
    worker(rank).machine().OnWait(0, out);
    Send(PeerId::Worker(rank), Carry(out));
  }

  // Delivers frames until none is left, or so many are delivered.
  void Settle(int most = 1 << 30) {
    for (; most > 0 && !wires_.empty(); --most) {
      auto wire = wires_.begin();
      std::advance(wire, random_.Below(wires_.size()));
      const auto [from, to] = wire->first;
      const Frame frame = std::move(wire->second.front());
      wire->second.pop_front();
      if (wire->second.empty()) wires_.erase(wire);
      const auto delivery = Deliver(MachineOf(to), from, frame);
      ASSERT_TRUE(delivery.ok()) << delivery.status();
      Send(to, delivery->effects);
    }
  }

  // Begins an epoch without the frames under way; without worker `lost`, unless
  // it is -1.
  void Enter(int lost = -1) {
    wires_.clear();
    job_ = EpochAfter(*job_, [&](Job& job) {
      std::erase_if(job.workers,
                    [&](const EpochWorker& each) { return each.rank == lost; });
    });
    if (lost >= 0) workers_.erase(lost);
    Outbox out;
    shard_.OnEpoch(job_, out);
    Send(PeerId::Shard(0), Carry(out));
    for (auto& [rank, worker] : workers_) {
      Send(PeerId::Worker(rank), worker->Enter(job_));
    }
  }

 private:
  Machine& MachineOf(PeerId peer) {
    if (peer.role == Role::kShard) return shard_;
    return worker(peer.rank).machine();
  }
  void Send(PeerId from, const Effects& effects) {
    for (const LayerDone& done : effects.done) means_[from.rank] = done.mean;
    for (const Effects::Sent& sent : effects.sent) {
      if (sent.to.has_value()) {
        wires_[{from, *sent.to}].push_back(sent.frame);
        continue;
      }
      for (const int32_t rank : sent.workers) {
        wires_[{from, PeerId::Worker(rank)}].push_back(sent.frame);
      }
    }
  }

  JobPtr job_;
  Random random_;
  Shard shard_;
  std::map<int, std::unique_ptr<WorkerUnderTest>> workers_;
  std::map<int, Buffer> gradients_;
  std::map<int, Buffer> means_;
  std::map<std::pair<PeerId, PeerId>, std::deque<Frame>> wires_;
};

}  // namespace nereus
