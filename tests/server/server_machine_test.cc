#include "server/shard/server_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/shard_driver.h"
#include "tests/testing/machine_harness.h"

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

}  // namespace
}  // namespace nereus
