#include "server/shard/server_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "server/coordinator/epoch_change.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

JobOptions PlainSgd(OptimizerPlace place = OptimizerPlace::kServer) {
  JobOptions options;
  options.optimizer.learning_rate = 1.0f;
  options.optimizer.momentum = 0.0f;
  options.optimizer_place = place;
  options.backup = true;
  return options;
}

JobPtr ThreeShards() {
  return TestJob(
      2, 3, {VectorLayer("a", 2), VectorLayer("b", 2), VectorLayer("c", 2)},
      PlainSgd());
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
    options.backup = false;
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

TEST_F(VotingServerTest, SkippedStepChangesNothing) {
  Contribute(0, 0, {1, 2});
  Vote(0, 0, 0, true);
  EXPECT_THAT(Vote(0, 1, 0, false).sent, SizeIs(1));  // The verdict.
  const Effects closed = Contribute(1, 0, {3, std::nanf("")});
  EXPECT_THAT(ValuesIn(closed.sent, FrameKind::kResult, 0, 0, 0, 2),
              ElementsAre(10, 20));
  EXPECT_THAT(parameters(), ElementsAre(10, 20));
  // The next one does.
  Contribute(0, 1, {1, 2});
  Contribute(1, 1, {3, 4});
  Vote(0, 0, 1, true);
  Vote(0, 1, 1, true);
  EXPECT_THAT(parameters(), ElementsAre(8, 17));
}

TEST_F(VotingServerTest, SingleServerTellsTheWorkersTheVerdict) {
  Vote(1, 0, 0, true);
  EXPECT_THAT(Vote(1, 1, 0, true).sent, IsEmpty());
  EXPECT_THAT(servers_.at(1).Report().verdicts,
              ElementsAre(StepVerdict{0, false}));
  EXPECT_THAT(servers_.at(0).Report().verdicts, IsEmpty());
}

// Worker 1 has died; only server 1 had its vote.
TEST_F(VotingServerTest, VerdictOfAnyServerIsInTheNextEpoch) {
  Contribute(0, 0, {1, 2});
  Vote(1, 0, 0, true);
  Vote(1, 1, 0, false);
  EpochChange change;
  EpochChange::Worker survivor;
  survivor.rank = 0;
  survivor.report.begun_step = 0;
  change.workers.push_back(survivor);
  for (auto& [rank, server] : servers_) {
    server.Freeze();
    change.servers.push_back({rank, false, server.Report()});
  }
  const auto next = MakeNextEpoch(*job_, 6, change);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->job->history.verdicts, ElementsAre(StepVerdict{0, true}));
  Outbox out;
  servers_.at(0).OnEpoch(next->job, out);
  DeliverAll(servers_.at(0), PeerId::Worker(0),
             FramesOf(*next->job, PeerId::Worker(0), FrameKind::kContribution,
                      0, 0, 0, {1, 2}));
  EXPECT_THAT(parameters(), ElementsAre(10, 20));
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

constexpr int kWorkers = 2;
constexpr int64_t kNothing = kInitialRound - 1;

// Servers that come and go, and two workers that have to do with them: frames
// of a connection arrive in order, connections in any order, and an epoch loses
// what is on its way. Every result is what an undisturbed job has.
class Turmoil {
 public:
  Turmoil(uint64_t seed, int servers, OptimizerPlace place)
      : random_(seed),
        job_(TestJob(kWorkers, servers,
                     {VectorLayer("a", 3), FactorLayer("fc", 2, 3, true, 4),
                      VectorLayer("large", kFrameElementsMax + 1),
                      VectorLayer("b", 5), VectorLayer("c", 1)},
                     PlainSgd(place), Scheme::kFactor)),
        expected_(job_->layers.size()),
        done_(kWorkers, std::vector<int64_t>(job_->layers.size(), kNothing)) {
    for (int rank = 0; rank < servers; ++rank) Make(rank);
    for (int rank = 0; rank < kWorkers; ++rank) Ask(rank);
  }

  // A frame arrives somewhere, if there is one.
  bool Step() {
    std::vector<Link> links;
    for (const auto& [link, frames] : wire_) {
      if (!frames.empty()) links.push_back(link);
    }
    if (links.empty()) return false;
    const Link link = links[random_.Below(links.size())];
    const Frame frame = wire_[link].front();
    wire_[link].pop_front();
    if (link.second.role == Role::kWorker) {
      Receive(link.second.rank, frame);
    } else {
      auto delivery = Deliver(servers_.at(link.second.rank), link.first, frame);
      EXPECT_TRUE(delivery.ok()) << delivery.status();
      if (delivery.ok()) Send(link.second, delivery->effects);
    }
    return true;
  }

  // Some servers die and others come, unless that costs the job.
  void Change() {
    EpochChange change;
    for (const auto& [rank, machine] : servers_) {
      const auto whole = machine.current_backups();
      change.current_backups.insert(change.current_backups.end(), whole.begin(),
                                    whole.end());
    }
    for (int rank = 0; rank < job_->shards(); ++rank) {
      const auto found = servers_.find(rank);
      if (found != servers_.end() && random_.Chance(0.75)) {
        change.servers.push_back({rank, false, found->second.Report()});
      } else if (random_.Chance(0.6)) {
        change.servers.push_back({rank, true, {}});
      }
    }
    const auto shard_servers = NextHolders(*job_, change);
    if (!shard_servers.ok()) return;
    wire_.clear();
    job_ = EpochAfter(*job_,
                      [&](Job& next) { next.shard_servers = *shard_servers; });
    std::set<int> stay;
    for (const EpochChange::Server& server : change.servers) {
      if (!server.joins) stay.insert(server.rank);
    }
    std::erase_if(servers_,
                  [&](const auto& each) { return !stay.contains(each.first); });
    for (auto& [rank, machine] : servers_) {
      Outbox out;
      machine.OnEpoch(job_, out);
      Send(PeerId::Shard(rank), Carry(out));
    }
    for (const EpochChange::Server& server : change.servers) {
      EXPECT_TRUE(job_->Holds(server.rank));
      if (server.joins) Make(server.rank);
    }
    for (int rank = 0; rank < kWorkers; ++rank) Ask(rank);
    ++changes_;
  }

  // Last round that all workers have done, in layers that take rounds.
  int64_t done() const {
    int64_t least = done_[0][0];
    for (const auto& layers : done_) {
      for (size_t layer = 0; layer < layers.size(); ++layer) {
        if (TakesRounds(layer)) least = std::min(least, layers[layer]);
      }
    }
    return least;
  }
  bool everybody_has_peer_layers() const {
    return done_[0][1] == kInitialRound && done_[1][1] == kInitialRound;
  }
  int changes() const { return changes_; }

 private:
  using Link = std::pair<PeerId, PeerId>;

  bool TakesRounds(size_t layer) const {
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
    const auto made = servers_.try_emplace(rank, job_, rank);
    made.first->second.Start(out);
    Send(PeerId::Shard(rank), Carry(out));
  }
  void Send(PeerId from, const Effects& effects) {
    for (const Effects::Sent& sent : effects.sent) {
      if (sent.to.has_value()) {
        wire_[{from, *sent.to}].push_back(sent.frame);
        continue;
      }
      for (const int32_t rank : sent.workers) {
        wire_[{from, PeerId::Worker(rank)}].push_back(sent.frame);
      }
    }
  }
  // Frames that a worker sends when an epoch begins.
  void Ask(int rank) {
    for (size_t layer = 0; layer < job_->layers.size(); ++layer) {
      const auto index = static_cast<int>(layer);
      missing_[{rank, index}] = 0;
      if (done_[rank][layer] != kNothing) {
        if (TakesRounds(layer)) Pull(rank, index, done_[rank][layer] + 1);
        Contribute(rank, index);
        continue;
      }
      if (rank == 0) Contribute(rank, index);
      Pull(rank, index, kInitialRound);
    }
  }
  void Pull(int rank, int layer, int64_t round) {
    wire_[{PeerId::Worker(rank), ServerOf(layer)}].push_back(PullFrame(
        *job_, PeerId::Worker(rank), FrameKind::kPull, layer, 0, round));
  }
  void Contribute(int rank, int layer) {
    const int64_t round = done_[rank][layer] + 1;
    if (round > kInitialRound && !TakesRounds(layer)) return;
    for (Frame& frame :
         FramesOf(*job_, PeerId::Worker(rank), FrameKind::kContribution, layer,
                  0, round, Gradient(rank, layer, round))) {
      wire_[{PeerId::Worker(rank), ServerOf(layer)}].push_back(
          std::move(frame));
    }
  }
  // Result of a run without changes.
  const std::vector<float>& Expected(int layer, int64_t round) {
    auto& known = expected_[layer];
    if (known.empty()) known.push_back(Gradient(0, layer, kInitialRound));
    while (std::ssize(known) <= round + 1) {
      const auto next = std::ssize(known) - 1;
      const auto first = Gradient(0, layer, next);
      const auto second = Gradient(1, layer, next);
      std::vector<float> values = known.back();
      for (size_t i = 0; i < values.size(); ++i) {
        const float mean = 0.5f * (first[i] + second[i]);
        const bool averages =
            job_->options.optimizer_place == OptimizerPlace::kWorker;
        values[i] = averages ? mean : values[i] - mean;
      }
      known.push_back(std::move(values));
    }
    return known[round + 1];
  }
  void Receive(int rank, const Frame& frame) {
    const FrameHeader& header = frame.header;
    const auto layer = static_cast<int>(header.layer);
    int64_t& done = done_[rank][layer];
    ASSERT_EQ(header.epoch, job_->epoch);
    ASSERT_EQ(header.kind, FrameKind::kResult);
    ASSERT_EQ(header.sender, ServerOf(layer));
    if (header.round <= done) return;  // Broadcast to a worker that has it.
    ASSERT_EQ(header.round, done + 1);
    const std::vector<float>& all = Expected(layer, header.round);
    const std::vector<float> found = FloatsOf(frame.payload);
    ASSERT_TRUE(
        std::equal(found.begin(), found.end(), all.begin() + header.offset))
        << DescribeFrame(header);
    int64_t& frames = missing_[{rank, layer}];
    if (++frames < FrameCount(std::ssize(all))) return;
    frames = 0;
    ++done;
    Contribute(rank, layer);
  }

  Random random_;
  JobPtr job_;
  std::map<int, ServerMachine> servers_;
  std::map<Link, std::deque<Frame>> wire_;
  std::vector<std::vector<std::vector<float>>> expected_;
  std::vector<std::vector<int64_t>> done_;  // Indexed by worker and layer.
  std::map<std::pair<int, int>, int64_t> missing_;  // Frames of a result.
  int changes_ = 0;
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
      turmoil.Change();
    }
    changes += turmoil.changes();
    // Quiet at last: it goes on, for ever.
    const int64_t last = turmoil.done() + 3;
    for (int step = 0; turmoil.done() < last && step < 100000; ++step) {
      ASSERT_TRUE(turmoil.Step()) << "done " << turmoil.done();
      ASSERT_FALSE(HasFailure());
    }
    EXPECT_GE(turmoil.done(), last);
    EXPECT_TRUE(turmoil.everybody_has_peer_layers());
  }
  EXPECT_GT(changes, 100);
}

}  // namespace
}  // namespace nereus
