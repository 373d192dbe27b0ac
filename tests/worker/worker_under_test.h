#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"
#include "worker/machine/worker_machine.h"

namespace nereus {

// Returns options of plain gradient descent: parameters -= mean gradient.
inline JobOptions PlainSgd(OptimizerPlace place) {
  JobOptions options;
  options.optimizer.learning_rate = 1.0f;
  options.optimizer.momentum = 0.0f;
  options.optimizer_place = place;
  return options;
}

// Worker with one layer, through several epochs.
class WorkerUnderTest {
 public:
  // `state_arrays`: number of arrays of the caller's optimizer.
  // `means_in_place`: that of LayerMemory.
  WorkerUnderTest(JobPtr job, int rank, int state_arrays = 0,
                  bool means_in_place = true)
      : rank_(rank),
        job_(std::move(job)),
        elements_(job_->layers[0].parameters),
        parameters_(FloatBuffer(IntegerValues(elements_, 1000 + rank))),
        state_(Buffer::AllocateZeroed(state_arrays * elements_ * 4)),
        machine_(job_, rank, {{parameters_, state_, means_in_place}}) {}

  Effects Start() {
    Outbox out;
    machine_.Start(out);
    return Carry(out);
  }
  Effects Enter(JobPtr job) {
    job_ = std::move(job);
    Outbox out;
    machine_.OnEpoch(job_, out);
    return Carry(out);
  }
  Effects Push(int64_t round, Buffer gradient) {
    Outbox out;
    const absl::Status status =
        machine_.OnPush(0, round, std::move(gradient), out);
    EXPECT_TRUE(status.ok()) << status;
    return Carry(out);
  }
  Effects PushFactors(int64_t round, FactorBuffers factors) {
    Outbox out;
    const absl::Status status =
        machine_.OnPushFactors(0, round, std::move(factors), out);
    EXPECT_TRUE(status.ok()) << status;
    return Carry(out);
  }
  // Delivers one chunk's result from its shard. `values`: the whole layer.
  Effects ReceiveChunk(int64_t chunk, int64_t round,
                       const std::vector<float>& values) {
    return DeliverAll(machine_, ShardOf(chunk),
                      ResultFrames(chunk, round, values));
  }
  Effects ReceiveResults(int64_t round, const std::vector<float>& values) {
    Effects last;
    for (const Chunk& chunk : job_->placement.layer_chunks(0)) {
      last = ReceiveChunk(chunk.index, round, values);
    }
    return last;
  }
  std::vector<Frame> ResultFrames(int64_t chunk, int64_t round,
                                  const std::vector<float>& values) const {
    const Chunk& part = job_->placement.layer_chunks(0)[chunk];
    const auto begin = values.begin() + part.offset;
    return FramesOf(*job_, ShardOf(chunk), FrameKind::kResult, 0, chunk, round,
                    {begin, begin + part.length});
  }
  // Delivers the donor's answer to a pull, for a layer of one chunk: parameters
  // and arrays of the optimizer's state.
  Effects ReceiveOwned(int owner, int64_t round,
                       const std::vector<std::vector<float>>& parts) {
    Effects last;
    for (size_t part = 0; part < parts.size(); ++part) {
      last = DeliverAll(
          machine_, PeerId::Worker(owner),
          FramesOf(*job_, PeerId::Worker(owner), FrameKind::kResult, 0, 0,
                   round, parts[part], static_cast<uint8_t>(part)));
    }
    return last;
  }
  // Delivers another worker's request for the layer.
  absl::StatusOr<Delivery> Pull(int rank, int64_t round) {
    return Deliver(
        machine_, PeerId::Worker(rank),
        PullFrame(*job_, PeerId::Worker(rank), FrameKind::kPull, 0, 0, round));
  }

  PeerId ShardOf(int64_t chunk) const {
    return PeerId::Shard(job_->placement.layer_chunks(0)[chunk].shard);
  }
  int rank() const { return rank_; }
  const JobPtr& job() const { return job_; }
  int64_t elements() const { return elements_; }
  WorkerMachine& machine() { return machine_; }
  const Syncer& syncer() const { return machine_.syncer(0); }
  const Buffer& parameters() const { return parameters_; }
  const Buffer& state() const { return state_; }

 private:
  const int rank_;
  JobPtr job_;
  const int64_t elements_;
  const Buffer parameters_;
  const Buffer state_;
  WorkerMachine machine_;
};

}  // namespace nereus
