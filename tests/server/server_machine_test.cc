#include "server/shard/server_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "server/coordinator/epoch_change.h"
#include "tests/server/shard_driver.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

JobPtr ThreeShards() {
  return TestJob(2, 3, PairLayers(), PlainSgdWithBackups());
}

TEST(ServerMachineTest, HoldsItsOwnShardAndTheBackupOfThePreviousShard) {
  const ServerMachine machine(ThreeShards(), 1);
  EXPECT_FALSE(machine.shard(0)->serves());
  EXPECT_TRUE(machine.shard(1)->serves());
  EXPECT_EQ(machine.shard(2), nullptr);
  EXPECT_EQ(machine.shard(3), nullptr);
  EXPECT_EQ(machine.chunk_count(), 2);
  EXPECT_EQ(machine.stored_bytes(), 0);
  EXPECT_THAT(machine.current_backups(), IsEmpty());
  EXPECT_THAT(
      machine.Report().closed_rounds,
      ElementsAre(std::pair(0, kInitialRound), std::pair(1, kInitialRound)));
}

TEST(ServerMachineTest, OldestOpenRoundIsOfAShardThatItServes) {
  const JobPtr job = ThreeShards();
  ServerMachine machine(job, 1);
  ASSERT_EQ(job->placement.layer_chunks(1)[0].shard, 1);
  EXPECT_EQ(machine.oldest_open_round()->layer, 1);
  EXPECT_EQ(machine.oldest_open_round()->round, kInitialRound);
}

Frame Probe(const Job& job, uint8_t part, int64_t train,
            const std::vector<float>& values) {
  const PeerId sender = PeerId::Worker(0);
  Frame probe{MakeHeader(job, sender, FrameKind::kProbe, 0, 0, train),
              FloatBuffer(values)};
  probe.header.part = part;
  probe.header.wire = WireType::kFloat32;
  probe.header.payload_bytes = static_cast<uint32_t>(probe.payload.bytes());
  return probe;
}

TEST(ServerMachineTest, AnswersTheLastFrameOfATrainOfProbes) {
  JobOptions options;
  options.measure = true;
  const JobPtr job = TestJob(2, 1, {VectorLayer("a", 2)}, options);
  ServerMachine machine(job, 0);
  const PeerId worker = PeerId::Worker(0);
  const Effects first =
      DeliverAll(machine, worker, {Probe(*job, kMoreFollow, 7, {0, 0})});
  EXPECT_THAT(first.sent, IsEmpty());
  const Effects last =
      DeliverAll(machine, worker, {Probe(*job, kLastOfTrain, 7, {0, 0})});
  ASSERT_THAT(last.sent, SizeIs(1));
  EXPECT_EQ(last.sent[0].to, worker);
  EXPECT_EQ(last.sent[0].frame.header.kind, FrameKind::kProbe);
  EXPECT_EQ(last.sent[0].frame.header.part, kTrainAnswer);
  EXPECT_EQ(last.sent[0].frame.header.round, 7);
  EXPECT_EQ(last.sent[0].frame.header.payload_bytes, 0u);

  // A worker that sends nothing but probes gets a bounded number of answers.
  int64_t answered = 1;
  Effects more;
  do {
    more = DeliverAll(machine, worker, {Probe(*job, kLastOfTrain, 8, {})});
    answered += std::ssize(more.sent);
  } while (!more.sent.empty() && answered < 1000000);
  EXPECT_EQ(answered, 65536);

  Frame wrong = Probe(*job, kLastOfTrain, 7, {});
  wrong.header.part = 2;
  EXPECT_FALSE(Deliver(machine, worker, wrong).ok());
}

TEST(ServerMachineTest, ProbesAreForJobsThatMeasure) {
  const JobPtr job = TestJob(2, 1, {VectorLayer("a", 2)});
  ServerMachine machine(job, 0);
  const auto refused =
      Deliver(machine, PeerId::Worker(0), Probe(*job, kLastOfTrain, 7, {}));
  EXPECT_THAT(
      std::string(refused.status().message()),
      HasSubstr("a probe must come from a worker of a job that measures"));
}

// Two workers, a layer on each of two servers, and a vote on each step.
class VotingServerTest : public testing::Test {
 protected:
  VotingServerTest() : job_(MakeVotingJob()) {
    for (const int server : {0, 1}) {
      servers_.try_emplace(server, job_, server);
    }
    Contribute(0, kInitialRound, {10, 20});
  }

  static JobPtr MakeVotingJob() {
    JobOptions options = PlainSgd();
    options.nan = NanPolicy::kSkip;
    return TestJob(2, 2, {VectorLayer("a", 2), VectorLayer("b", 2)}, options);
  }

  // To layer `a`, which is on server 0.
  Effects Contribute(int worker, int64_t round,
                     const std::vector<float>& values) {
    return DeliverAll(servers_.at(0), PeerId::Worker(worker),
                      FramesOf(*job_, PeerId::Worker(worker),
                               FrameKind::kContribution, 0, 0, round, values));
  }
  Effects Vote(int server, int worker, int64_t step, bool fit) {
    FrameHeader vote =
        MakeHeader(*job_, PeerId::Worker(worker), FrameKind::kVote, 0, 0, step);
    vote.part = fit ? kGood : kSkipped;
    return DeliverAll(servers_.at(server), PeerId::Worker(worker),
                      {{vote, {}}});
  }
  std::vector<float> parameters() const {
    return FloatsOf(servers_.at(0).shard(0)->chunk(0, 0).held().parameters);
  }

  const JobPtr job_;
  std::map<int, ServerMachine> servers_;
};

TEST_F(VotingServerTest, RoundWaitsForTheVotes) {
  Contribute(0, 0, {1, 2});
  EXPECT_THAT(Contribute(1, 0, {3, 4}).sent, IsEmpty());
  EXPECT_THAT(Vote(0, 0, 0, true).sent, IsEmpty());
  EXPECT_THAT(servers_.at(0).oldest_open_round()->missing_workers,
              ElementsAre(1));
  const Effects closed = Vote(0, 1, 0, true);
  ASSERT_THAT(closed.sent, SizeIs(2));
  EXPECT_EQ(closed.sent[0].frame.header.kind, FrameKind::kResult);
  EXPECT_EQ(closed.sent[1].frame.header.kind, FrameKind::kVerdict);
  EXPECT_EQ(closed.sent[1].frame.header.part, kGood);
  EXPECT_THAT(parameters(), ElementsAre(8, 17));
}

TEST_F(VotingServerTest, SingleServerTellsTheWorkersTheVerdict) {
  Vote(1, 0, 0, true);
  EXPECT_THAT(Vote(1, 1, 0, true).sent, IsEmpty());
  EXPECT_THAT(servers_.at(1).Report().verdicts,
              ElementsAre(StepVerdict{0, false}));
  EXPECT_THAT(servers_.at(0).Report().verdicts, IsEmpty());
}

TEST(ServerMachineTest, RefusesChunksOfOtherServers) {
  const JobPtr job = ThreeShards();
  const ServerMachine machine(job, 1);
  const auto refusal = [&](int layer) {
    const Frame frame =
        FramesOf(*job, PeerId::Worker(0), FrameKind::kContribution, layer, 0,
                 kInitialRound, {1, 2})[0];
    const auto landing = machine.OnHeader(PeerId::Worker(0), frame.header);
    return std::string(landing.status().message());
  };
  EXPECT_THAT(refusal(0), HasSubstr("this server is the shard's backup"));
  EXPECT_EQ(refusal(1), "");
  EXPECT_THAT(refusal(2), HasSubstr("the chunk is shard 2's, this is shard 1"));
  FrameHeader header =
      MakeHeader(*job, PeerId::Worker(0), FrameKind::kPull, 1, 1, -1);
  EXPECT_FALSE(machine.OnHeader(PeerId::Worker(0), header).ok());
  header.layer = 3;
  EXPECT_FALSE(machine.OnHeader(PeerId::Worker(0), header).ok());
}

TEST(ServerMachineTest, EpochMakesAndDropsShards) {
  const JobPtr job = ThreeShards();
  ServerMachine machine(job, 1);
  Outbox out;
  machine.Start(out);
  EXPECT_THAT(SentTo(Carry(out).sent, PeerId::Shard(0)), SizeIs(1));
  // Server 2 is gone, and had the copy of shard 1.
  const JobPtr without = EpochAfter(*job, [](Job& next) {
    next.shard_servers = {{0, 1, true}, {1, -1, false}, {0, -1, false}};
  });
  machine.OnEpoch(without, out);
  EXPECT_EQ(machine.shard(2), nullptr);
  EXPECT_THAT(SentTo(Carry(out).sent, PeerId::Shard(0)), SizeIs(1));
  // Server 0 is gone.
  const JobPtr alone = EpochAfter(*without, [](Job& next) {
    next.shard_servers = {{1, -1, false}, {1, 2, false}, {2, 1, false}};
  });
  machine.OnEpoch(alone, out);
  EXPECT_TRUE(machine.shard(0)->serves());
  ASSERT_NE(machine.shard(2), nullptr);
  EXPECT_FALSE(machine.shard(2)->serves());
  EXPECT_THAT(SentTo(Carry(out).sent, PeerId::Shard(2)), SizeIs(1));
  const JobPtr back = EpochAfter(*alone, [](Job& next) {
    next.shard_servers = {{0, -1, false}, {1, 2, false}, {2, 0, false}};
  });
  machine.OnEpoch(back, out);
  EXPECT_EQ(machine.shard(0), nullptr);
  EXPECT_EQ(machine.shard(2), nullptr);
  EXPECT_EQ(machine.chunk_count(), 1);
}

// Two servers. Returns the heartbeats that each sends from the start until the
// initial values are at both, if `shard_servers` hold the four shards.
std::vector<int> HeartbeatsWith(std::vector<ShardServers> shard_servers) {
  const JobPtr job =
      EpochAfter(*TestJob(1, 4,
                          {VectorLayer("a", 2), VectorLayer("b", 3),
                           VectorLayer("c", 2), VectorLayer("d", 1)}),
                 [&](Job& next) {
                   next.options.backup = true;
                   next.shard_servers = std::move(shard_servers);
                 });
  std::deque<ServerMachine> servers;
  for (const int server : {0, 1}) servers.emplace_back(job, server);
  std::vector<int> heartbeats = {0, 0};
  std::deque<Effects::Sent> between;
  const auto take = [&](int server, const Effects& effects) {
    heartbeats[server] += effects.heartbeats;
    for (const Effects::Sent& sent : effects.sent) {
      if (sent.to.has_value() && sent.to->role == Role::kShard) {
        between.push_back(sent);
      }
    }
  };
  const auto deliver = [&] {
    while (!between.empty()) {
      const Effects::Sent sent = between.front();
      between.pop_front();
      const int to = sent.to->rank;
      take(to, DeliverAll(servers[to], sent.frame.header.sender, {sent.frame}));
    }
  };
  for (const int server : {0, 1}) {
    Outbox out;
    servers[server].Start(out);
    take(server, Carry(out));
  }
  deliver();
  for (const Chunk& chunk : job->placement.chunks()) {
    const PeerId worker = PeerId::Worker(0);
    const int to = job->ServerOf(chunk).rank;
    take(to, DeliverAll(servers[to], worker,
                        FramesOf(*job, worker, FrameKind::kContribution,
                                 chunk.layer, chunk.index, kInitialRound,
                                 IntegerValues(chunk.length, 0))));
  }
  deliver();
  for (const int server : {0, 1}) {
    std::vector<int32_t> served;
    for (int shard = 0; shard < job->shards(); ++shard) {
      if (job->shard_servers[shard].primary == server) served.push_back(shard);
    }
    EXPECT_EQ(servers[server].current_backups(), served);
  }
  return heartbeats;
}

TEST(ServerMachineTest, LastBackupThatBecomesCurrentIsReportedAtOnce) {
  EXPECT_THAT(HeartbeatsWith(
                  {{0, 1, false}, {1, 0, false}, {0, 1, false}, {0, 1, true}}),
              ElementsAre(1, 1));
}

TEST(ServerMachineTest, BackupThatTheCoordinatorKnowsIsNotReported) {
  EXPECT_THAT(
      HeartbeatsWith({{0, 1, true}, {1, 0, false}, {0, 1, true}, {1, 0, true}}),
      ElementsAre(0, 1));
}

// Servers that come and go, and two workers. Frames of a connection arrive in
// order, those of several connections in any order, and an epoch loses what is
// on its way. Every result must be that of an undisturbed job, bit for bit.
class Turmoil {
 public:
  Turmoil(uint64_t seed, int servers, OptimizerPlace place)
      : random_(seed),
        job_(TestJob(/*workers=*/2, servers,
                     {VectorLayer("a", 3), FactorLayer("fc", 2, 3, true, 4),
                      VectorLayer("large", kFrameElementsMax + 1),
                      VectorLayer("b", 5), VectorLayer("c", 1)},
                     PlainSgdWithBackups(place), Scheme::kFactor)) {
    for (int rank = 0; rank < servers; ++rank) Make(rank);
    Ask();
  }

  // A frame arrives somewhere. Returns false if none is on its way.
  bool Step() {
    if (wire_.empty()) return false;
    const auto link =
        std::next(wire_.begin(), static_cast<int>(random_.Below(wire_.size())));
    const auto [from, to] = link->first;
    const Frame frame = link->second.front();
    link->second.pop_front();
    if (link->second.empty()) wire_.erase(link);
    if (to.role == Role::kWorker) {
      Receive(to.rank, frame);
    } else {
      Send(to, DeliverAll(servers_.at(to.rank), from, {frame}));
    }
    return true;
  }

  // Some servers die and others come, unless that costs the job. Returns true
  // if a new epoch begins.
  bool Change() {
    EpochChange change;
    for (int rank = 0; rank < job_->shards(); ++rank) {
      const auto found = servers_.find(rank);
      if (found != servers_.end()) {
        for (const int32_t shard : found->second.current_backups()) {
          change.current_backups.push_back(shard);
        }
      }
      if (found != servers_.end() && random_.Chance(0.75)) {
        change.servers.push_back({rank, false, found->second.Report()});
      } else if (random_.Chance(0.6)) {
        change.servers.push_back({rank, true, {}});
      }
    }
    const auto holders = NextHolders(*job_, change);
    if (!holders.ok()) return false;
    wire_.clear();
    job_ = EpochAfter(*job_, [&](Job& next) { next.shard_servers = *holders; });
    std::map<int, ServerMachine> before;
    before.swap(servers_);
    for (const EpochChange::Server& server : change.servers) {
      EXPECT_TRUE(job_->Holds(server.rank));
      if (server.joins) {
        Make(server.rank);
        continue;
      }
      servers_.insert(before.extract(server.rank));
      Outbox out;
      servers_.at(server.rank).OnEpoch(job_, out);
      Send(PeerId::Shard(server.rank), Carry(out));
    }
    Ask();
    return true;
  }

  // Last round that both workers have done, in all layers. Both must have the
  // initial values of the layer that they exchange without the servers.
  int64_t done() const {
    int64_t least = kStepMax;
    for (const auto& [key, progress] : progress_) {
      if (TakesRounds(key.second) || progress.done < kInitialRound) {
        least = std::min(least, progress.done);
      }
    }
    return least;
  }

 private:
  // Results of a layer that a worker has.
  struct Progress {
    int64_t done = kInitialRound - 1;  // Round of the last one.
    int64_t frames = 0;                // Frames that it has of the next one.
  };

  bool TakesRounds(int layer) const {
    return job_->routes[layer].scheme != Scheme::kFactor;
  }
  std::vector<float> Gradient(int worker, int layer, int64_t round) const {
    return IntegerValues(job_->layers[layer].parameters,
                         worker * 100 + layer * 10 + round);
  }
  PeerId ServerOf(int layer) const {
    return job_->ServerOf(job_->placement.layer_chunks(layer)[0]);
  }
  void Make(int rank) {
    Outbox out;
    servers_.try_emplace(rank, job_, rank).first->second.Start(out);
    Send(PeerId::Shard(rank), Carry(out));
  }
  void Send(PeerId from, const Effects& effects) {
    for (const Effects::Sent& sent : effects.sent) {
      if (sent.to.has_value()) wire_[{from, *sent.to}].push_back(sent.frame);
      for (const int32_t rank : sent.workers) {
        wire_[{from, PeerId::Worker(rank)}].push_back(sent.frame);
      }
    }
  }
  // Both workers send what they send when an epoch begins.
  void Ask() {
    for (const int rank : {0, 1}) {
      for (int layer = 0; layer < std::ssize(job_->layers); ++layer) {
        Progress& progress = progress_[{rank, layer}];
        progress.frames = 0;
        const bool begins = progress.done < kInitialRound;
        if (!begins && !TakesRounds(layer)) continue;
        wire_[{PeerId::Worker(rank), ServerOf(layer)}].push_back(
            PullFrame(*job_, PeerId::Worker(rank), FrameKind::kPull, layer, 0,
                      progress.done + 1));
        if (!begins || rank == 0) Contribute(rank, layer);
      }
    }
  }
  void Contribute(int rank, int layer) {
    const int64_t round = progress_[{rank, layer}].done + 1;
    for (const Frame& frame :
         FramesOf(*job_, PeerId::Worker(rank), FrameKind::kContribution, layer,
                  0, round, Gradient(rank, layer, round))) {
      wire_[{PeerId::Worker(rank), ServerOf(layer)}].push_back(frame);
    }
  }
  void Receive(int rank, const Frame& frame) {
    const FrameHeader& header = frame.header;
    const auto layer = static_cast<int>(header.layer);
    Progress& progress = progress_[{rank, layer}];
    ASSERT_EQ(header.epoch, job_->epoch);
    ASSERT_EQ(header.kind, FrameKind::kResult);
    ASSERT_EQ(header.sender, ServerOf(layer));
    if (header.round <= progress.done) return;  // Sent to both workers.
    ASSERT_EQ(header.round, progress.done + 1);
    const std::vector<float>& all = Undisturbed(layer, header.round);
    const std::vector<float> found = FloatsOf(frame.payload);
    ASSERT_TRUE(
        std::equal(found.begin(), found.end(), all.begin() + header.offset))
        << DescribeFrame(header);
    if (++progress.frames < FrameCount(std::ssize(all))) return;
    progress = {header.round, 0};
    if (TakesRounds(layer)) Contribute(rank, layer);
  }
  // Result in a job without changes.
  const std::vector<float>& Undisturbed(int layer, int64_t round) {
    std::vector<float>& result = results_[{layer, round}];
    if (!result.empty()) return result;
    result = Gradient(0, layer, round);
    if (round == kInitialRound) return result;
    const std::vector<float> second = Gradient(1, layer, round);
    const std::vector<float>& before = Undisturbed(layer, round - 1);
    for (size_t i = 0; i < result.size(); ++i) {
      result[i] = 0.5f * (result[i] + second[i]);
      if (job_->options.optimizer_place == OptimizerPlace::kServer) {
        result[i] = before[i] - result[i];
      }
    }
    return result;
  }

  Random random_;
  JobPtr job_;
  std::map<int, ServerMachine> servers_;
  // Frames on their way, by sender and receiver.
  std::map<std::pair<PeerId, PeerId>, std::deque<Frame>> wire_;
  // Progress by worker and layer.
  std::map<std::pair<int, int>, Progress> progress_;
  // Results of Undisturbed, by layer and round.
  std::map<std::pair<int, int64_t>, std::vector<float>> results_;
};

class TurmoilTest
    : public testing::TestWithParam<std::pair<int, OptimizerPlace>> {};

INSTANTIATE_TEST_SUITE_P(Table, TurmoilTest,
                         testing::Values(std::pair(2, OptimizerPlace::kServer),
                                         std::pair(2, OptimizerPlace::kWorker),
                                         std::pair(3, OptimizerPlace::kServer),
                                         std::pair(4,
                                                   OptimizerPlace::kWorker)));

TEST_P(TurmoilTest, CostsNoRoundAndChangesNoResult) {
  int changes = 0;
  for (const uint64_t seed : TestSeeds(12)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    Turmoil turmoil(seed, GetParam().first, GetParam().second);
    for (int epoch = 0; epoch < 25; ++epoch) {
      const uint64_t most = random.Chance(0.5) ? 30 : 250;
      for (uint64_t step = random.Below(most); step > 0; --step) {
        turmoil.Step();
        ASSERT_FALSE(HasFailure());
      }
      changes += turmoil.Change() ? 1 : 0;
    }
    // Without changes, the job goes on.
    const int64_t last = turmoil.done() + 3;
    for (int step = 0; turmoil.done() < last && step < 100000; ++step) {
      ASSERT_TRUE(turmoil.Step()) << "done " << turmoil.done();
      ASSERT_FALSE(HasFailure());
    }
    EXPECT_GE(turmoil.done(), last);
  }
  if (TriesAllSeeds()) {
    EXPECT_GT(changes, 100);
  }
}

}  // namespace
}  // namespace nereus
