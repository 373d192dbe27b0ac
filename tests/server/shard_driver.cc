#include "tests/server/shard_driver.h"

#include <gmock/gmock.h>

#include <utility>

namespace nereus {

using testing::HasSubstr;
using testing::IsEmpty;

JobOptions PlainSgd(OptimizerPlace place) {
  JobOptions options;
  options.optimizer.learning_rate = 1.0f;
  options.optimizer.momentum = 0.0f;
  options.optimizer_place = place;
  return options;
}

JobOptions PlainSgdWithBackups(OptimizerPlace place) {
  JobOptions options = PlainSgd(place);
  options.backup = true;
  return options;
}

namespace {

// Expects that `shard` refuses a frame of its sender for this reason.
void ExpectRefusedBy(const Shard& shard, const FrameHeader& header,
                     const std::string& why) {
  const absl::Status status = shard.OnHeader(header.sender, header).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
}

bool DiscardsIn(const Shard& shard, const FrameHeader& header) {
  const auto landing = shard.OnHeader(header.sender, header);
  EXPECT_TRUE(landing.ok()) << landing.status();
  return landing.ok() && landing->kind == Landing::Kind::kDiscard;
}

}  // namespace

ShardDriver::ShardDriver(JobPtr job, int shard)
    : job_(std::move(job)), shard_(job_, shard) {}

ShardDriver::ShardDriver(int workers, const std::vector<float>& initial,
                         JobOptions options)
    : ShardDriver(TestJob(
          workers, 1, {VectorLayer("scale", std::ssize(initial))}, options)) {
  Contribute(0, kInitialRound, initial);
}

std::vector<float> ShardDriver::parameters(int layer) const {
  return FloatsOf(shard_.chunk(layer, 0).held().parameters);
}

Effects ShardDriver::Enter(const std::function<void(Job&)>& edit) {
  job_ = EpochAfter(*job_, edit);
  Outbox out;
  shard_.OnEpoch(job_, out);
  return Carry(out);
}

Effects ShardDriver::EnterWith(const std::vector<EpochWorker>& workers) {
  return Enter([&](Job& job) { job.workers = workers; });
}

Effects ShardDriver::Send(const std::vector<Frame>& frames) {
  return DeliverAll(shard_, frames.front().header.sender, frames);
}

std::vector<Frame> ShardDriver::Contribution(int rank, int64_t round,
                                             const std::vector<float>& values,
                                             int layer, int64_t chunk) const {
  return FramesOf(*job_, PeerId::Worker(rank), FrameKind::kContribution, layer,
                  chunk, round, values);
}

Effects ShardDriver::Contribute(int rank, int64_t round,
                                const std::vector<float>& values, int layer,
                                int64_t chunk) {
  return Send(Contribution(rank, round, values, layer, chunk));
}

Frame ShardDriver::PullOf(int rank, int64_t round, int layer) const {
  return PullFrame(*job_, PeerId::Worker(rank), FrameKind::kPull, layer, 0,
                   round);
}

Effects ShardDriver::Pull(int rank, int64_t round, int layer) {
  return Send({PullOf(rank, round, layer)});
}

bool ShardDriver::Discards(const Frame& frame) const {
  return DiscardsIn(shard_, frame.header);
}

void ShardDriver::ExpectRefused(const FrameHeader& header,
                                const std::string& why) const {
  ExpectRefusedBy(shard_, header, why);
}

std::vector<float> ShardDriver::Result(const Effects& effects, int64_t round,
                                       int layer) const {
  return ValuesIn(effects.sent, FrameKind::kResult, layer, 0, round,
                  job_->placement.layer_chunks(layer)[0].length);
}

std::vector<LayerSpec> PairLayers() {
  return {VectorLayer("a", 2), VectorLayer("b", 2), VectorLayer("c", 2)};
}

ShardPair::ShardPair(const JobPtr& job) : job_(job) {
  for (const int rank : {0, 1}) Make(rank);
}

ShardPair::ShardPair(JobOptions options, int workers)
    : ShardPair(TestJob(workers, 2, PairLayers(), options)) {}

void ShardPair::Make(int rank) {
  Outbox out;
  shards_.try_emplace(rank, job_, 0, PeerId::Shard(rank));
  at(rank).Start(out);
  Effects all;
  Take(Carry(out), all);
  EXPECT_THAT(all.sent, IsEmpty());
}

void ShardPair::Take(Effects effects, Effects& all) {
  for (Effects::Sent& sent : effects.sent) {
    if (!sent.to.has_value() || sent.to->role == Role::kWorker) {
      all.sent.push_back(std::move(sent));
    } else {
      EXPECT_NE(*sent.to, sent.frame.header.sender);
      wire_.push_back(std::move(sent.frame));
    }
  }
  for (SaveCheckpoint& save : effects.saves) saves_.push_back(std::move(save));
  for (LoadCheckpoint& load : effects.loads) loads_.push_back(std::move(load));
}

Effects ShardPair::Enter(const ShardServers& servers,
                         const std::function<void(Job&)>& edit) {
  wire_.clear();
  job_ = EpochAfter(*job_, [&](Job& job) {
    job.shard_servers[0] = servers;
    if (edit) edit(job);
  });
  Effects all;
  for (const int rank : {0, 1}) {
    if (rank != servers.primary && rank != servers.backup) {
      shards_.erase(rank);
    } else if (shards_.count(rank) == 0) {
      Make(rank);
    } else {
      Outbox out;
      at(rank).OnEpoch(job_, out);
      Take(Carry(out), all);
    }
  }
  return all;
}

Effects ShardPair::Send(int worker, const std::vector<Frame>& frames) {
  Effects all;
  Take(DeliverAll(server(), PeerId::Worker(worker), frames), all);
  return all;
}

std::vector<Frame> ShardPair::Contribution(
    int worker, int layer, int64_t round,
    const std::vector<float>& values) const {
  return FramesOf(*job_, PeerId::Worker(worker), FrameKind::kContribution,
                  layer, 0, round, values);
}

Effects ShardPair::Contribute(int worker, int layer, int64_t round,
                              const std::vector<float>& values) {
  return Send(worker, Contribution(worker, layer, round, values));
}

Effects ShardPair::Pull(int worker, int layer, int64_t round) {
  return Send(worker, {PullFrame(*job_, PeerId::Worker(worker),
                                 FrameKind::kPull, layer, 0, round)});
}

Effects ShardPair::Decide(const StepVerdict& verdict) {
  Outbox out;
  server().OnVerdict(verdict, out);
  Effects all;
  Take(Carry(out), all);
  return all;
}

Shard& ShardPair::Receiver(const Frame& frame) {
  return at(frame.header.sender == PeerId::Shard(0) ? 1 : 0);
}

Effects ShardPair::Arrive(int count) {
  Effects all;
  for (; count > 0 && !wire_.empty(); --count) {
    const Frame frame = wire_.front();
    wire_.pop_front();
    Take(DeliverAll(Receiver(frame), frame.header.sender, {frame}), all);
  }
  return all;
}

void ShardPair::Begin(const std::vector<float>& initial) {
  Arrive();
  for (const int layer : {0, 2}) Contribute(0, layer, kInitialRound, initial);
  EXPECT_THAT(Arrive().sent, IsEmpty());
  ExpectEqual();
}

Effects ShardPair::Round(int64_t round, const std::vector<float>& values) {
  Effects all;
  for (const int layer : {0, 2}) {
    for (const EpochWorker& each : job_->workers) {
      std::vector<float> scaled = values;
      for (float& value : scaled) value *= static_cast<float>(1 + each.rank);
      Take(Contribute(each.rank, layer, round, scaled), all);
    }
  }
  Take(Arrive(), all);
  return all;
}

std::vector<float> ShardPair::parameters(int rank, int layer) const {
  return FloatsOf(shards_.at(rank).chunk(layer, 0).held().parameters);
}

void ShardPair::ExpectEqual() {
  for (const int layer : {0, 2}) {
    EXPECT_EQ(parameters(0, layer), parameters(1, layer)) << layer;
  }
  EXPECT_EQ(at(0).stored_bytes(), at(1).stored_bytes());
  EXPECT_EQ(at(0).closed_round(), at(1).closed_round());
  EXPECT_TRUE(server().has_current_backup());
}

Frame ShardPair::Between(FrameKind kind, int from, int64_t round,
                         int layer) const {
  Frame frame{MakeHeader(*job_, PeerId::Shard(from), kind, layer, 0, round),
              {}};
  if (kind != FrameKind::kHave) {
    frame.header.wire = WireType::kFloat32;
    frame.payload = FloatBuffer({1, 1});
    frame.header.payload_bytes = 8;
  }
  return frame;
}

void ShardPair::ExpectDiscarded(const Frame& frame) {
  EXPECT_TRUE(DiscardsIn(Receiver(frame), frame.header));
}

void ShardPair::ExpectRefused(const Frame& frame, const std::string& why) {
  ExpectRefusedBy(Receiver(frame), frame.header, why);
}

}  // namespace nereus
