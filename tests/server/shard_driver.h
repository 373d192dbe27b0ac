#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "server/shard/shard.h"
#include "tests/testing/machine_harness.h"

namespace nereus {

// Options with which an update subtracts the mean gradient, exactly.
JobOptions PlainSgd(OptimizerPlace place = OptimizerPlace::kServer);
// PlainSgd of a job in which each shard has a backup.
JobOptions PlainSgdWithBackups(OptimizerPlace place = OptimizerPlace::kServer);

// A shard, and its job through several epochs. Chunk 0 of a layer is meant
// where no chunk is named, and layer 0 where no layer is.
class ShardDriver {
 public:
  explicit ShardDriver(JobPtr job, int shard = 0);
  // The shard has layer "scale", with these initial parameters.
  ShardDriver(int workers, const std::vector<float>& initial,
              JobOptions options = PlainSgd());

  const Job& job() const { return *job_; }
  Shard& shard() { return shard_; }
  const Shard& shard() const { return shard_; }
  std::vector<float> parameters(int layer = 0) const;

  // Begins the next epoch.
  Effects Enter(const std::function<void(Job&)>& edit = {});
  // Begins the next epoch with these workers.
  Effects EnterWith(const std::vector<EpochWorker>& workers);

  // Frames of a worker that the shard must not refuse.
  Effects Send(const std::vector<Frame>& frames);
  std::vector<Frame> Contribution(int rank, int64_t round,
                                  const std::vector<float>& values,
                                  int layer = 0, int64_t chunk = 0) const;
  Effects Contribute(int rank, int64_t round, const std::vector<float>& values,
                     int layer = 0, int64_t chunk = 0);
  Frame PullOf(int rank, int64_t round, int layer = 0) const;
  Effects Pull(int rank, int64_t round, int layer = 0);

  // True if the shard discards the frame. The shard must not refuse it.
  bool Discards(const Frame& frame) const;
  // Expects that the shard refuses a frame of its sender with kInvalidArgument
  // and a message that contains `why`.
  void ExpectRefused(const FrameHeader& header, const std::string& why) const;

  // Returns the values of a result in `effects`.
  std::vector<float> Result(const Effects& effects, int64_t round,
                            int layer = 0) const;

 private:
  JobPtr job_;
  Shard shard_;
};

// Three layers of two values, of which 0 and 2 are shard 0's.
std::vector<LayerSpec> PairLayers();

// Shard 0 on servers 0 and 1, and the network between them, which carries a
// frame when it is told to.
class ShardPair {
 public:
  explicit ShardPair(const JobPtr& job);
  explicit ShardPair(JobOptions options = PlainSgdWithBackups(),
                     int workers = 2);

  const Job& job() const { return *job_; }
  Shard& at(int rank) { return shards_.at(rank); }
  Shard& server() { return at(job_->shard_servers[0].primary); }
  Shard& copy() { return at(job_->shard_servers[0].backup); }
  std::vector<float> parameters(int rank, int layer = 0) const;

  // Frames on their way; what the two have saved and loaded.
  const std::deque<Frame>& wire() const { return wire_; }
  const std::vector<SaveCheckpoint>& saves() const { return saves_; }
  const std::vector<LoadCheckpoint>& loads() const { return loads_; }

  // Begins the next epoch. A server that no longer holds the shard is gone, and
  // a new one has no values. Frames on their way are lost.
  Effects Enter(const ShardServers& servers,
                const std::function<void(Job&)>& edit = {});

  // All of these return what workers are sent.

  // These frames come from a worker.
  Effects Send(int worker, const std::vector<Frame>& frames);
  Effects Contribute(int worker, int layer, int64_t round,
                     const std::vector<float>& values);
  Effects Pull(int worker, int layer, int64_t round);
  // The primary gets the verdict on a step.
  Effects Decide(const StepVerdict& verdict);
  // So many frames between the servers arrive, or all, and theirs.
  Effects Arrive(int count = std::numeric_limits<int>::max());
  // Sends a round of both layers by all workers.
  Effects Round(int64_t round, const std::vector<float>& values);

  // Both layers have these initial values, on both servers.
  void Begin(const std::vector<float>& initial);
  void ExpectEqual();

  std::vector<Frame> Contribution(int worker, int layer, int64_t round,
                                  const std::vector<float>& values) const;
  // Returns a frame of a server: two ones, or kHave.
  Frame Between(FrameKind kind, int from, int64_t round, int layer = 0) const;
  // How the other one takes it.
  void ExpectDiscarded(const Frame& frame);
  void ExpectRefused(const Frame& frame, const std::string& why);

 private:
  void Make(int rank);
  Shard& Receiver(const Frame& frame);
  // Keeps what workers are sent; the rest is on the wire.
  void Take(Effects effects, Effects& all);

  JobPtr job_;
  std::map<int, Shard> shards_;  // Keyed by the server's rank.
  std::deque<Frame> wire_;
  std::vector<SaveCheckpoint> saves_;
  std::vector<LoadCheckpoint> loads_;
};

}  // namespace nereus
