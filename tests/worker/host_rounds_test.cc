// Rounds of workers that share hosts and exchange through a shard: rounds that
// an epoch interrupts, and the frames that mates refuse.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/shard/shard.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/test_seed.h"
#include "tests/worker/worker_cluster.h"

namespace nereus {
namespace {

using testing::HasSubstr;

constexpr int64_t kElements = kFrameElementsMax + 25'064;  // Two frames.

// How a job and its hosts look.
struct Case {
  std::vector<int32_t> hosts;  // Host of each worker.
  OptimizerPlace place = OptimizerPlace::kServer;
  bool deterministic = false;
};

std::string NameOf(const Case& c) {
  std::string name = absl::StrCat("hosts", absl::StrJoin(c.hosts, ""), "_",
                                  OptimizerPlaceName(c.place));
  if (c.deterministic) absl::StrAppend(&name, "_deterministic");
  return name;
}

JobPtr JobOf(const Case& c) {
  JobOptions options = PlainSgd(c.place);
  options.deterministic = c.deterministic;
  const auto workers = static_cast<int>(c.hosts.size());
  Job job = *TestJob(workers, 1, {VectorLayer("large", kElements)}, options);
  for (int i = 0; i < workers; ++i) job.workers[i].host = c.hosts[i];
  return *MakeJob(std::move(job), /*shards=*/1);
}

// Small integers, so that all sums are exact in any order.
std::vector<float> Small(int64_t count, int salt) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>((i * 7 + salt * 13) % 5 - 2));
  }
  return values;
}

class HostCluster : public WorkerCluster {
 public:
  HostCluster(const Case& c, uint64_t seed) : WorkerCluster(JobOf(c), seed) {}

  void PushRound(int rank, int64_t round) {
    Push(rank, round, FloatBuffer(Small(kElements, rank)));
  }
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const std::vector<int32_t>& hosts : {std::vector<int32_t>{0, 0, 1, 1},
                                            {0, 1, 0, 1},
                                            {0, 0, 0, 0},
                                            {0, 1, 1, 1},
                                            {0, 1, 2, 2}}) {
    cases.push_back({hosts, OptimizerPlace::kServer});
    cases.push_back({hosts, OptimizerPlace::kWorker});
    cases.push_back({hosts, OptimizerPlace::kServer, /*deterministic=*/true});
  }
  return cases;
}

class HostEpochTest : public testing::TestWithParam<Case> {};

// With the other schemes the coordinator says which rounds are recovered.
INSTANTIATE_TEST_SUITE_P(All, HostEpochTest, testing::ValuesIn(AllCases()),
                         [](const auto& info) { return NameOf(info.param); });

// Frames are lost with the epoch. A worker may be lost too: then the round has
// the contributions of the others, or of all if it was closed before.
TEST_P(HostEpochTest, RoundThatAnEpochInterruptsCountsOnce) {
  for (const uint64_t seed : TestSeeds(50)) {
    SCOPED_TRACE(ReplayHint(seed));
    HostCluster cluster(GetParam(), seed);
    for (int rank = 0; rank < 4; ++rank) cluster.PushRound(rank, 0);
    for (int rank = 0; rank < 4; ++rank) cluster.Hurry(rank);
    cluster.Settle(static_cast<int>(seed % 50));
    const int lost = static_cast<int>(seed % 5) - 1;
    cluster.Enter([&](Job& job) {
      std::erase_if(job.workers,
                    [&](const EpochWorker& each) { return each.rank == lost; });
    });
    for (int64_t round = 0; round < 2; ++round) {
      if (round > 0) {
        for (int rank = 0; rank < 4; ++rank) {
          if (rank != lost) cluster.PushRound(rank, round);
        }
      }
      for (int rank = 0; rank < 4; ++rank) {
        if (rank != lost) cluster.Hurry(rank);
      }
      cluster.Settle();
      const int first = lost == 0 ? 1 : 0;
      for (int rank = 0; rank < 4; ++rank) {
        if (rank == lost) continue;
        ASSERT_EQ(cluster.worker(rank).syncer().done_round(), round) << rank;
        ASSERT_EQ(cluster.Outcome(rank), cluster.Outcome(first)) << rank;
        // If the worker kept the gradient, the client's Wait would not end.
        ASSERT_TRUE(cluster.gradient(rank).unique()) << rank;
      }
    }
  }
}

class LocalFrameTest : public testing::Test {
 protected:
  // Workers 0 and 1 on one host, worker 2 on another one.
  LocalFrameTest() : cluster_({{0, 0, 1}}, /*seed=*/1) {}

  // The chunk's carrier on the first host, and its mate.
  int carrier() const {
    return cluster_.job().CarrierOf(/*layer=*/0, /*unit=*/0, /*round=*/0,
                                    /*host=*/0);
  }
  int mate() const { return 1 - carrier(); }

  Frame FrameOf(int sender, FrameKind kind, int64_t round) const {
    return FramesOf(cluster_.job(), PeerId::Worker(sender), kind, 0, 0, round,
                    Small(kElements, sender))
        .front();
  }
  void ExpectRefused(int receiver, const Frame& frame, const std::string& why) {
    const absl::Status status = cluster_.worker(receiver)
                                    .machine()
                                    .OnHeader(frame.header.sender, frame.header)
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }

  HostCluster cluster_;
};

TEST_F(LocalFrameTest, OnlyTheCarrierTakesPartsOfItsMates) {
  ExpectRefused(carrier(), FrameOf(2, FrameKind::kLocal, 0),
                "is not on the host of this worker");
  ExpectRefused(mate(), FrameOf(carrier(), FrameKind::kLocal, 0),
                "carries that part of the layer on this host");
  ExpectRefused(2, FrameOf(0, FrameKind::kLocal, 0),
                "is not on the host of this worker");
  ExpectRefused(carrier(), FrameOf(mate(), FrameKind::kLocal, 2),
                "rounds 0 and 1 are open");
}

TEST_F(LocalFrameTest, OnlyTheCarrierHandsOn) {
  cluster_.PushRound(mate(), 0);
  ExpectRefused(mate(), FrameOf(2, FrameKind::kOutcome, 0),
                "does not carry that chunk on this host");
  ExpectRefused(carrier(), FrameOf(mate(), FrameKind::kOutcome, 0),
                "does not carry that chunk on this host");
  ExpectRefused(mate(), FrameOf(carrier(), FrameKind::kOutcome, 1),
                "this worker is at round 0");
}

TEST_F(LocalFrameTest, OnlyTheCarrierSpeaksForItsHost) {
  const Job& job = cluster_.job();
  Shard shard(cluster_.worker(0).job(), 0);
  DeliverAll(shard, PeerId::Worker(0),
             FramesOf(job, PeerId::Worker(0), FrameKind::kContribution, 0, 0,
                      kInitialRound, Small(kElements, 1)));
  const Frame frame = FrameOf(mate(), FrameKind::kContribution, 0);
  const absl::Status status =
      shard.OnHeader(frame.header.sender, frame.header).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("sends the sum of that host"));
}

TEST_F(LocalFrameTest, AWaitNamesTheFirstCause) {
  cluster_.PushRound(carrier(), 0);
  cluster_.Settle();
  EXPECT_EQ(cluster_.worker(carrier()).syncer().Missing(),
            absl::StrCat("worker ", mate()));
  cluster_.PushRound(mate(), 0);
  cluster_.Settle();
  EXPECT_EQ(cluster_.worker(carrier()).syncer().Missing(), "shard 0 (chunk 0)");
  EXPECT_EQ(cluster_.worker(mate()).syncer().Missing(),
            absl::StrCat("worker ", carrier()));
}

}  // namespace
}  // namespace nereus
