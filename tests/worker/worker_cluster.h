#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
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
  // Gradient that a worker pushed last, or the memory for its mean.
  const Buffer& gradient(int rank) const { return gradients_.at(rank); }
  // Mean of the last round of a worker (LayerDone::mean).
  Buffer mean(int rank) { return means_[rank]; }

  void Push(int rank, int64_t round, Buffer gradient) {
    gradients_[rank] = std::move(gradient);
    Send(PeerId::Worker(rank), worker(rank).Push(round, gradients_[rank]));
  }
  void PushFactors(int rank, int64_t round, FactorBuffers factors) {
    gradients_[rank] = factors.gradient;
    Send(PeerId::Worker(rank),
         worker(rank).PushFactors(round, std::move(factors)));
  }
  // Result of a worker's last round: the parameters, or the mean gradient.
  std::vector<float> Outcome(int rank) {
    const bool here = job_->options.optimizer_place == OptimizerPlace::kServer;
    return FloatsOf(here ? worker(rank).parameters() : gradients_.at(rank));
  }
  void Hurry(int rank) {
    Outbox out;
    worker(rank).machine().OnHurry(0, out);
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

  // Sets the condition by which frames to a member are lost.
  void set_loses(std::function<bool(const Frame& frame, PeerId to)> loses) {
    loses_ = std::move(loses);
  }

  // Begins an epoch without the frames under way, and without workers that are
  // no longer in the job.
  void Enter(const std::function<void(Job&)>& edit) {
    wires_.clear();
    loses_ = nullptr;
    job_ = EpochAfter(*job_, edit);
    std::erase_if(workers_, [&](const auto& worker) {
      return job_->PositionOf(worker.first) < 0 &&
             !absl::c_linear_search(job_->crew.left_workers, worker.first);
    });
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
      std::vector<PeerId> receivers;
      if (sent.to.has_value()) receivers.push_back(*sent.to);
      for (const int32_t rank : sent.workers) {
        receivers.push_back(PeerId::Worker(rank));
      }
      for (const PeerId to : receivers) {
        if (loses_ && loses_(sent.frame, to)) continue;
        wires_[{from, to}].push_back(sent.frame);
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
  std::function<bool(const Frame& frame, PeerId to)> loses_;
};

}  // namespace nereus
