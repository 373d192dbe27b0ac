// Tests of a shard on its primary and its backup: both have the same rounds,
// and workers see no round that only one of them has.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/shard/shard.h"
#include "tests/server/shard_driver.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<float> Result(const Effects& effects, int64_t round,
                          int layer = 0) {
  return ValuesIn(effects.sent, FrameKind::kResult, layer, 0, round, 2);
}

std::vector<FrameKind> KindsOn(const std::deque<Frame>& wire) {
  std::vector<FrameKind> kinds;
  for (const Frame& frame : wire) kinds.push_back(frame.header.kind);
  return kinds;
}

// So the primary waits for the hop alone, and not for the backup's update.
TEST(ShardBackupTest, BackupSaysThatItHasARoundBeforeItUpdates) {
  ShardPair pair;
  pair.Begin({1, 2});
  pair.Contribute(0, 0, 0, {1, 1});
  pair.Contribute(1, 0, 0, {1, 1});
  ASSERT_THAT(KindsOn(pair.wire()), ElementsAre(FrameKind::kAggregate));
  const Frame mean = pair.wire().front();
  Machine& copy = pair.copy();
  ASSERT_TRUE(copy.OnHeader(PeerId::Shard(0), mean.header).ok());
  Outbox out;
  copy.OnFrame(PeerId::Shard(0), mean, out);
  std::vector<std::string> kinds;
  for (const Action& action : out.actions()) {
    if (std::holds_alternative<SendFrame>(action)) kinds.push_back("send");
    if (std::holds_alternative<UpdateParameters>(action)) {
      kinds.push_back("update");
    }
  }
  EXPECT_THAT(kinds, ElementsAre("send", "update"));
}

class ShardCopyPlaceTest : public testing::TestWithParam<OptimizerPlace> {
 protected:
  // Result of a round: the parameters, or the mean.
  std::vector<float> Either(std::vector<float> parameters,
                            std::vector<float> mean) const {
    return GetParam() == OptimizerPlace::kServer ? parameters : mean;
  }
};

INSTANTIATE_TEST_SUITE_P(Both, ShardCopyPlaceTest,
                         testing::Values(OptimizerPlace::kServer,
                                         OptimizerPlace::kWorker),
                         [](const auto& info) {
                           return std::string(OptimizerPlaceName(info.param));
                         });

TEST_P(ShardCopyPlaceTest, RoundClosesOnceTheBackupHasIt) {
  ShardPair pair(PlainSgdWithBackups(GetParam()));
  pair.Begin({10, 20});
  EXPECT_THAT(pair.Contribute(1, 0, 0, {1, 2}).sent, IsEmpty());
  EXPECT_THAT(pair.wire(), IsEmpty());
  EXPECT_THAT(pair.Contribute(0, 0, 0, {3, 4}).sent, IsEmpty());
  EXPECT_THAT(KindsOn(pair.wire()), ElementsAre(FrameKind::kAggregate));
  EXPECT_EQ(pair.server().closed_round(), kInitialRound);
  EXPECT_THAT(pair.Arrive(1).sent, IsEmpty());
  const Effects closed = pair.Arrive(1);
  ASSERT_THAT(closed.sent, SizeIs(1));
  EXPECT_EQ(closed.sent[0].to, std::nullopt);
  EXPECT_EQ(Result(closed, 0), Either({8, 17}, {2, 3}));
  pair.ExpectEqual();
}

// Workers that join while a round has all its contributions begin with its
// result, in whichever order they ask.
TEST(ShardBackupTest, NewWorkersBeginWithTheResultOfAClosingRound) {
  ShardPair pair;
  pair.Begin({10, 20});
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 0, {3, 6});
  pair.Arrive(1);  // The mean; the copy's answer is lost.
  pair.Enter({0, 1, true}, [](Job& job) { job.workers = {{2, 0}, {3, 0}}; });
  EXPECT_THAT(pair.Pull(2, 0, kInitialRound).sent, IsEmpty());
  const Effects shown = pair.Arrive();
  ASSERT_THAT(shown.sent, SizeIs(1));
  const std::vector<float> closed = {7, 14};
  EXPECT_EQ(FloatsOf(shown.sent[0].frame.payload), closed);
  const Effects later = pair.Pull(3, 0, kInitialRound);
  ASSERT_THAT(later.sent, SizeIs(1));
  EXPECT_EQ(FloatsOf(later.sent[0].frame.payload), closed);
}

TEST_P(ShardCopyPlaceTest, NewBackupGetsChunkAfterChunkWhileOthersGoOn) {
  ShardPair pair(PlainSgdWithBackups(GetParam()));
  pair.Begin({10, 20});
  pair.Round(0, {2, 2});
  pair.Enter({0, -1, false});
  pair.Round(1, {2, 2});
  EXPECT_FALSE(pair.server().has_current_backup());
  pair.Enter({0, 1, false});
  // Before it has said that it has nothing, rounds go on without it.
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 2, {0, 0});
  EXPECT_EQ(pair.server().oldest_open_round()->round, 2);
  EXPECT_THAT(pair.Arrive(2).sent, IsEmpty());
  // Its parameters, and their velocity or the last mean.
  EXPECT_THAT(KindsOn(pair.wire()),
              ElementsAre(FrameKind::kCopy, FrameKind::kCopy));
  const int sent = static_cast<int>(pair.wire().front().header.layer);
  const int other = 2 - sent;
  // A round of the chunk that is on its way waits, that of the other does not.
  pair.Contribute(0, sent, 3 - sent / 2, {1, 1});
  EXPECT_THAT(pair.Contribute(1, sent, 3 - sent / 2, {1, 1}).sent, IsEmpty());
  pair.Contribute(0, other, 3 - other / 2, {1, 1});
  EXPECT_THAT(pair.Contribute(1, other, 3 - other / 2, {1, 1}).sent, SizeIs(1));
  const Effects rest = pair.Arrive();
  ASSERT_THAT(rest.sent, SizeIs(1));
  EXPECT_EQ(rest.sent[0].frame.header.layer, static_cast<uint32_t>(sent));
  EXPECT_TRUE(pair.server().has_current_backup());
  // Also bit-equal: if it takes over, it goes on.
  const std::vector<float> parameters = pair.parameters(0);
  const std::vector<float> others = pair.parameters(0, 2);
  EXPECT_EQ(pair.parameters(1), parameters);
  EXPECT_EQ(pair.parameters(1, 2), others);
  pair.Enter({1, -1, false});
  EXPECT_THAT(pair.Pull(0, sent, 3 - sent / 2).sent, SizeIs(1));
}

// Layers that workers own are held as of the base round, and never change.
TEST(ShardBackupTest, LayersByFactorsAreCopiedAsTheyAre) {
  const JobPtr job = TestJob(2, 2, {FactorLayer("fc", 2, 3, true, 4)},
                             PlainSgdWithBackups(), Scheme::kFactor);
  ASSERT_EQ(job->routes[0].scheme, Scheme::kFactor);
  ShardPair pair(job);
  pair.Arrive();
  const auto initial = IntegerValues(8, 1);
  pair.Contribute(0, 0, kInitialRound, initial);
  pair.Arrive();
  EXPECT_EQ(pair.parameters(1), initial);
  EXPECT_TRUE(pair.server().has_current_backup());
  EXPECT_EQ(pair.server().closed_round(), std::nullopt);
  Frame mean = pair.Between(FrameKind::kAggregate, 0, 0);
  mean.header.payload_bytes = 32;
  pair.ExpectRefused(mean, "workers exchange this layer without the servers");
}

// The backup still has the mean of the last round when it becomes the primary.
TEST(ShardBackupTest, NoMeanIsCopiedOfALayerThatHasLeftTheServers) {
  ShardPair pair(PlainSgdWithBackups(OptimizerPlace::kWorker));
  pair.Begin({10, 20});
  pair.Round(0, {1, 2});
  pair.Enter({0, 1, true}, [](Job& job) {
    for (Route& route : job.routes) route.scheme = Scheme::kRing;
  });
  pair.Arrive();
  pair.Enter({1, -1, false});
  pair.Enter({1, 0, false});
  for (; !pair.wire().empty(); pair.Arrive(1)) {
    EXPECT_EQ(pair.wire().front().header.part, 0);
  }
  pair.ExpectEqual();
}

// A job that goes on from a checkpoint, with the optimizer on the workers.
class RestoredCopyTest : public testing::Test {
 protected:
  RestoredCopyTest()
      : pair_(EpochAfter(*TestJob(2, 2, PairLayers(), Options()), [](Job& job) {
          job.history.base_round = 6;
          job.history.first_step = 7;
          job.state_arrays = 2;
          for (EpochWorker& each : job.workers) each.first_step = 7;
        })) {}
  static JobOptions Options() {
    return PlainSgdWithBackups(OptimizerPlace::kWorker);
  }
  // Values in the files of a server.
  void Fill(size_t load) {
    float next = 1;
    for (const ChunkValues& values : pair_.loads()[load].values) {
      for (const Buffer* buffer : {&values.parameters, &values.state}) {
        for (int64_t i = 0; i < buffer->float_count(); ++i) {
          const_cast<Buffer*>(buffer)->floats()[i] = next++;
        }
      }
    }
  }
  ShardPair pair_;
};

TEST_F(RestoredCopyTest, NewBackupIsSentBaseAndMean) {
  ASSERT_THAT(pair_.loads(), SizeIs(2));
  Fill(0);
  pair_.Arrive();
  for (const bool averaged : {false, true}) {
    if (averaged) pair_.Round(7, {2, 2});
    pair_.Enter({0, -1, false});
    pair_.Enter({0, 1, false});
    ASSERT_THAT(pair_.loads(), SizeIs(2));
    pair_.Arrive(2);
    EXPECT_THAT(pair_.wire(), SizeIs(averaged ? 4 : 3));
    pair_.Arrive();
    ASSERT_TRUE(pair_.server().has_current_backup());
    EXPECT_EQ(pair_.copy().closed_round(), averaged ? 7 : 6);
  }
  pair_.Enter({1, -1, false});
  EXPECT_THAT(Result(pair_.Pull(0, 0, 7), 7), ElementsAre(3, 3));
  pair_.Enter({1, -1, false}, [](Job& job) { job.workers = {{0, 7}, {1, 7}}; });
  EXPECT_THAT(pair_.Contribute(0, 0, 8, {9, 9}).sent, IsEmpty());
}

TEST(ShardBackupTest, FramesOfOtherServersAreRefused) {
  const JobPtr job = TestJob(2, 3, PairLayers(), PlainSgdWithBackups());
  Shard server(job, 0, PeerId::Shard(0));
  Shard copy(job, 0, PeerId::Shard(1));
  FrameHeader header =
      MakeHeader(*job, PeerId::Shard(2), FrameKind::kHave, 0, 0, kInitialRound);
  for (const Shard* shard : {&server, &copy}) {
    const absl::Status status = shard->OnHeader(header.sender, header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr(
            "server 0 is the primary of shard 0 and server 1 its backup"));
  }
  // Without a copy, no server has to.
  const JobPtr alone = EpochAfter(*job, [](Job& next) {
    next.shard_servers[0] = {0, -1, false};
  });
  Outbox out;
  server.OnEpoch(alone, out);
  header = MakeHeader(*alone, PeerId::Shard(1), FrameKind::kHave, 0, 0,
                      kInitialRound);
  EXPECT_THAT(
      std::string(server.OnHeader(header.sender, header).status().message()),
      HasSubstr("the sender must be a worker"));
}

// Frame between the servers of a pair that has its initial values.
struct PairRefusal {
  const char* name;
  FrameKind kind;
  int from;  // Server that sends the frame: 0 is the primary.
  int64_t round;
  const char* message;
  std::function<void(FrameHeader&)> edit = [](FrameHeader&) {};
};

class PairRefusalTest : public testing::TestWithParam<PairRefusal> {};

TEST_P(PairRefusalTest, IsRefusedWithTheReason) {
  ShardPair pair;
  pair.Begin({10, 20});
  Frame frame =
      pair.Between(GetParam().kind, GetParam().from, GetParam().round);
  GetParam().edit(frame.header);
  pair.ExpectRefused(frame, GetParam().message);
}

constexpr char kHaveIsOpen[] = "round 0 is open";
constexpr char kCopyParts[] = "a copy as of this round has 2 parts";

INSTANTIATE_TEST_SUITE_P(
    All, PairRefusalTest,
    testing::Values(
        PairRefusal{"HaveWithAnOffset", FrameKind::kHave, 1, 0,
                    "without payload",
                    [](auto& h) { h.offset = kFrameElementsMax; }},
        PairRefusal{"HaveWithAPart", FrameKind::kHave, 1, 0, "without payload",
                    [](auto& h) { h.part = 1; }},
        PairRefusal{"MeanOfTheBackup", FrameKind::kAggregate, 1, 0,
                    "a backup must send frames of kind have"},
        PairRefusal{"CopyOfTheBackup", FrameKind::kCopy, 1, 0,
                    "a backup must send frames of kind have"},
        PairRefusal{"HaveOfTheNextRound", FrameKind::kHave, 1, 1, kHaveIsOpen},
        PairRefusal{"HaveOfALaterRound", FrameKind::kHave, 1, 2, kHaveIsOpen},
        PairRefusal{"HaveOfTheLastRound", FrameKind::kHave, 1, kStepMax,
                    kHaveIsOpen},
        PairRefusal{"HaveOfThePrimary", FrameKind::kHave, 0, 0,
                    "backups take means, verdicts and copies"},
        PairRefusal{"MeanOfALaterRound", FrameKind::kAggregate, 0, 1,
                    "the backup follows round 0"},
        PairRefusal{"MeanWithAPart", FrameKind::kAggregate, 0, 0,
                    "the backup follows round 0", [](auto& h) { h.part = 1; }},
        PairRefusal{"ShortMean", FrameKind::kAggregate, 0, 0, "payload",
                    [](auto& h) { h.payload_bytes = 4; }},
        PairRefusal{"CopyWithAPartTooMany", FrameKind::kCopy, 0, 0, kCopyParts,
                    [](auto& h) { h.part = 2; }},
        PairRefusal{"CopyWithTheLastPart", FrameKind::kCopy, 0, 0, kCopyParts,
                    [](auto& h) { h.part = 255; }},
        PairRefusal{"CopyOfARoundOutOfRange", FrameKind::kCopy, 0, kStepMax + 1,
                    "rounds are in [-1, "}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ShardBackupTest, FramesOfPastRoundsAreDiscarded) {
  ShardPair pair;
  const Frame early = pair.Contribution(0, 0, kInitialRound, {1, 2})[0];
  EXPECT_THAT(std::string(pair.copy()
                              .OnHeader(early.header.sender, early.header)
                              .status()
                              .message()),
              HasSubstr("this server is the shard's backup"));
  pair.Begin({10, 20});
  pair.ExpectDiscarded(pair.Between(FrameKind::kHave, 1, 0));
  pair.ExpectDiscarded(pair.Between(FrameKind::kAggregate, 0, kInitialRound));
  pair.ExpectDiscarded(pair.Between(FrameKind::kCopy, 0, kInitialRound));
}

// No backup can have a mean that was never sent.
TEST(ShardBackupTest, BackupCannotHaveAMeanThatItWasNotSent) {
  ShardPair pair;
  pair.Begin({10, 20});
  pair.Enter({0, 1, true});
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 0, {3, 6});
  pair.ExpectRefused(pair.Between(FrameKind::kHave, 1, 1), "round 0 is open");
}

TEST(ShardBackupTest, CopyUnderWayIsOfASingleRound) {
  constexpr int64_t kElements = kFrameElementsMax + 1;
  ShardPair pair(
      TestJob(1, 2, {VectorLayer("large", kElements)}, PlainSgdWithBackups()));
  pair.Arrive();
  pair.Contribute(0, 0, kInitialRound, IntegerValues(kElements, 1));
  pair.Arrive();
  pair.Enter({0, -1, false});
  pair.Enter({0, 1, false});
  pair.Arrive(1);
  ASSERT_THAT(pair.wire(), SizeIs(4));
  pair.Arrive(1);
  Frame other = pair.wire().front();
  other.header.round = 0;
  pair.ExpectRefused(other, "receives a copy of 2 parts as of round -1");
  other = pair.wire().front();
  other.header.part = 2;
  pair.ExpectRefused(other, "a copy of 2 parts");
  other = pair.wire().front();
  other.header.kind = FrameKind::kAggregate;
  pair.ExpectRefused(other, "and receives a copy now");
}

TEST(ShardBackupTest, RoundThatWaitsForTheBackupSaysSo) {
  ShardPair pair;
  pair.Begin({10, 20});
  EXPECT_EQ(pair.server().oldest_open_round()->missing_backup, -1);
  for (const int layer : {2, 0}) {
    for (const int worker : {0, 1}) pair.Contribute(worker, layer, 0, {3, 6});
  }
  EXPECT_THAT(pair.server().oldest_open_round()->missing_workers, IsEmpty());
  EXPECT_EQ(pair.server().oldest_open_round()->missing_backup, 1);
}

// Frames of simulations may have sizes and no values.
TEST(ShardBackupTest, SizesAreCopiedWithoutValues) {
  constexpr int64_t kElements = kFrameElementsMax + 1;
  JobOptions options = PlainSgdWithBackups();
  options.optimizer.rule = UpdateRule::kAdam;
  JobPtr job = TestJob(1, 2, {VectorLayer("large", kElements)}, options);
  std::deque<Shard> servers;
  for (const int rank : {0, 1}) {
    servers.emplace_back(job, 0, PeerId::Shard(rank));
  }
  Outbox out;
  const auto carry = [&] {
    std::deque<Effects::Sent> wire;
    const auto send = [&] {
      for (auto& sent : Carry(out).sent) wire.push_back(std::move(sent));
    };
    for (send(); !wire.empty(); send()) {
      const Effects::Sent sent = wire.front();
      wire.pop_front();
      EXPECT_EQ(sent.frame.payload.data(), nullptr);
      if (!sent.to.has_value() || sent.to->role == Role::kWorker) continue;
      const FrameHeader& header = sent.frame.header;
      Shard& to = servers[sent.to->rank];
      ASSERT_TRUE(to.OnHeader(header.sender, header).ok());
      to.OnFrame(header.sender, sent.frame, out);
    }
  };
  const auto contribute = [&](int64_t round) {
    CutIntoFrames(*job,
                  MakeHeader(*job, PeerId::Worker(0), FrameKind::kContribution,
                             0, 0, round),
                  Buffer::SizeOnly(kElements * 4), [&](const Frame& frame) {
                    servers[0].OnFrame(PeerId::Worker(0), frame, out);
                    carry();
                  });
  };
  for (Shard& server : servers) server.Start(out);
  carry();
  contribute(kInitialRound);
  contribute(0);
  EXPECT_EQ(servers[0].closed_round(), 0);
  EXPECT_EQ(servers[1].stored_bytes(), 3 * kElements * 4);
  // A new backup comes.
  job = EpochAfter(*job, [](Job& next) {
    next.shard_servers[0] = {0, 1, false};
  });
  servers.pop_back();
  servers.emplace_back(job, 0, PeerId::Shard(1));
  servers[0].OnEpoch(job, out);
  servers[1].Start(out);
  carry();
  contribute(1);
  EXPECT_EQ(servers[1].closed_round(), 1);
  EXPECT_EQ(servers[1].stored_bytes(), 3 * kElements * 4);
}

// A primary that was about to skip a round becomes the backup. The round that
// it then takes from the new primary is not skipped.
TEST(ShardSkipTest, FormerPrimaryForgetsThatItsRoundWasSkipped) {
  JobOptions options = PlainSgdWithBackups();
  options.nan = NanPolicy::kSkip;
  ShardPair pair(options);
  const auto contribute = [&](int64_t round) {
    for (const int layer : {0, 2}) {
      for (const int worker : {0, 1}) {
        pair.Contribute(worker, layer, round, {1, 2});
      }
    }
  };
  pair.Begin({10, 20});
  contribute(0);
  pair.Decide({0, /*skipped=*/true});
  pair.Arrive(2);  // The verdict, of each layer. The answers are lost.
  ASSERT_EQ(pair.at(0).closed_round(), kInitialRound);
  ASSERT_EQ(pair.at(1).closed_round(), 0);
  pair.Enter({1, 0, true}, [](Job& job) {
    job.history.verdicts = {{0, /*skipped=*/true}};
  });
  pair.Arrive();
  pair.ExpectEqual();
  contribute(1);
  pair.Decide({1, /*skipped=*/false});
  pair.Arrive();
  EXPECT_THAT(pair.parameters(1), ElementsAre(9, 18));
  pair.ExpectEqual();
}

}  // namespace
}  // namespace nereus
