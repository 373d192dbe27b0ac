// A round between workers that one of them has finished before an epoch ends,
// by each scheme: what the source of the round sends, and what it refuses. The
// laws of tests/simulation say that all workers then have the same bits.

#include "worker/machine/peer_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/plan/ring_segments.h"
#include "tests/testing/machine_harness.h"
#include "tests/worker/worker_cluster.h"

namespace nereus {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 3;
constexpr int64_t kM = 13;
constexpr int64_t kN = 11;
constexpr int64_t kElements = kM * kN + kM;

struct Case {
  Scheme scheme;
  OptimizerPlace place;
  WireType wire = WireType::kFloat32;

  // True if all workers but worker 0 push dense gradients, up to round 2.
  bool dense = false;

  bool factors() const { return scheme == Scheme::kFactor; }
  bool PushesDense(int rank, int64_t round) const {
    return dense && rank > 0 && round <= 2;
  }
  // Number of frames of the memory of a round.
  size_t frames_kept() const { return (factors() ? 2 : 1) + (dense ? 1 : 0); }
};

// Has momentum, so that a worker that lacks the state gets other parameters.
JobOptions Momentum(OptimizerPlace place) {
  JobOptions options;
  options.optimizer.momentum = 0.9f;
  options.optimizer_place = place;
  return options;
}

JobPtr PeerJob(int workers, const Case& c) {
  return TestJob(workers, 1, {FactorLayer("fc", kM, kN, true, kRows)},
                 Momentum(c.place), c.scheme, c.wire);
}

// Returns values that give different sums in different orders. The first values
// are small: they lose bits where a frame gives them the exponent of the
// others.
std::vector<float> Noise(int64_t count, int rank, int64_t round, int matrix) {
  Random random(static_cast<uint64_t>(rank * 1000 + round * 10 + matrix));
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const double size = i < count / 4 ? 1e-6 : 1.0;
    values.push_back(static_cast<float>(size * (random.Uniform() - 0.5)));
  }
  return values;
}

class PeerCluster : public WorkerCluster {
 public:
  PeerCluster(int workers, const Case& c)
      : WorkerCluster(PeerJob(workers, c), /*seed=*/1), case_(c) {}

  void PushRound(int rank, int64_t round) {
    if (!case_.factors() || case_.PushesDense(rank, round)) {
      return Push(rank, round, FloatBuffer(Noise(kElements, rank, round, 0)));
    }
    PushFactors(rank, round,
                {FloatBuffer(Noise(kRows * kM, rank, round, 0)),
                 FloatBuffer(Noise(kRows * kN, rank, round, 1)),
                 Buffer::AllocateZeroed(kElements * 4)});
  }
  // Runs a whole round of these workers.
  void Run(const std::vector<int>& ranks, int64_t round) {
    for (const int rank : ranks) PushRound(rank, round);
    Settle();
    ExpectDone(ranks, round);
  }
  void ExpectDone(const std::vector<int>& ranks, int64_t round) {
    for (const int rank : ranks) {
      EXPECT_EQ(worker(rank).syncer().done_round(), round) << rank;
      EXPECT_EQ(Outcome(rank), Outcome(ranks[0])) << rank;
    }
  }
  // The first frame of a worker's contribution.
  Frame FirstFrame(int from, int64_t round) const {
    const Scheme scheme = job().routes[0].scheme;
    const int position = job().PositionOf(from);
    const RingSegments segments(kElements, job().ContributorsOf(round));
    const int64_t length = scheme == Scheme::kFactor ? kRows * kM
                           : scheme == Scheme::kRing ? segments.Length(position)
                                                     : kElements;
    return FramesOf(job(), PeerId::Worker(from),
                    scheme == Scheme::kFactor ? FrameKind::kFactors
                                              : FrameKind::kSum,
                    0, position, round,
                    Noise(std::max<int64_t>(length, 1), from, round, 0))
        .front();
  }

 private:
  const Case case_;
};

// Three workers. The last frames of `round` came to worker 0, which finished
// it, but not to worker 1. Then worker 2 died.
class HalfFinished : public PeerCluster {
 public:
  explicit HalfFinished(const Case& c, int64_t round = 1) : PeerCluster(3, c) {
    for (int64_t done = 0; done < round; ++done) Run({0, 1, 2}, done);
    for (const int rank : {0, 1}) PushRound(rank, round);
    Settle();
    set_loses([&c](const Frame& frame, PeerId to) {
      const bool is_last =
          c.scheme == Scheme::kDirect || frame.header.kind != FrameKind::kSum;
      return to == PeerId::Worker(1) && is_last;
    });
    PushRound(2, round);
    Settle();
    EXPECT_EQ(worker(0).syncer().done_round(), round);
    EXPECT_EQ(worker(1).syncer().done_round(), round - 1);
  }

  // Enters the epoch of workers 0 and 1, in which worker 0 is the source of
  // `round`.
  void EnterWithoutTwo(int64_t round = 1) {
    Enter([&](Job& job) {
      job.workers = {{0, 0}, {1, 0}};
      job.history.finished_rounds = {
          {0, round, /*source=*/0, /*contributors=*/3}};
    });
  }
  // Question of a worker for a round.
  Frame Pull(int rank, int64_t round) const {
    return PullFrame(job(), PeerId::Worker(rank), FrameKind::kPullRound, 0, 0,
                     round);
  }
};

class PeerEpochTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    SchemesAndPlaces, PeerEpochTest,
    testing::Values(
        Case{Scheme::kFactor, OptimizerPlace::kServer},
        Case{Scheme::kFactor, OptimizerPlace::kWorker},
        Case{Scheme::kFactor, OptimizerPlace::kServer, WireType::kFloat32,
             /*dense=*/true},
        Case{Scheme::kFactor, OptimizerPlace::kWorker, WireType::kFloat16,
             /*dense=*/true},
        Case{Scheme::kRing, OptimizerPlace::kServer},
        Case{Scheme::kRing, OptimizerPlace::kWorker},
        // Frames of a recovered round are cut in another way than
        // those whose values were rounded.
        Case{Scheme::kRing, OptimizerPlace::kServer, WireType::kFloat16},
        Case{Scheme::kDirect, OptimizerPlace::kServer},
        Case{Scheme::kDirect, OptimizerPlace::kWorker, WireType::kFloat16}),
    [](const auto& info) {
      return absl::StrCat(SchemeName(info.param.scheme), "_",
                          OptimizerPlaceName(info.param.place),
                          info.param.wire == WireType::kFloat32 ? "" : "_fp16",
                          info.param.dense ? "_dense" : "");
    });

TEST_P(PeerEpochTest, ReportsSayWhichRoundIsDone) {
  HalfFinished cluster(GetParam());
  for (const int rank : {0, 1}) {
    const MachineReport report = cluster.worker(rank).machine().Report();
    EXPECT_EQ(report.begun_step, 1);
    EXPECT_FALSE(report.fetching);
    EXPECT_TRUE(report.closed_rounds.empty());
    ASSERT_EQ(report.peer_layers.size(), 1u);
    EXPECT_EQ(report.peer_layers[0].layer, 0);
    EXPECT_EQ(report.peer_layers[0].done_round, rank == 0 ? 1 : 0);
    EXPECT_EQ(report.peer_layers[0].contributors, 3);
  }
}

// The memory of round 4 had dense gradients in round 2.
TEST_P(PeerEpochTest, ARoundFromTheSourceHasNothingOfAnEarlierRound) {
  HalfFinished cluster(GetParam(), /*round=*/4);
  cluster.EnterWithoutTwo(/*round=*/4);
  EXPECT_EQ(cluster.worker(1).syncer().Missing(), "worker 0");
  cluster.Settle();
  cluster.ExpectDone({0, 1}, 4);
  EXPECT_EQ(cluster.worker(1).syncer().contributors(), 3);
  cluster.Run({0, 1}, 5);
}

TEST_P(PeerEpochTest, FramesOfARoundTellAlikeOfDenseGradients) {
  HalfFinished cluster(GetParam());
  cluster.EnterWithoutTwo();
  const auto asked = Deliver(cluster.worker(0).machine(), PeerId::Worker(1),
                             cluster.Pull(1, 1));
  ASSERT_TRUE(asked.ok()) << asked.status();
  WorkerUnderTest& receiver = cluster.worker(1);
  const auto announce = [&](int frame, uint16_t frames) {
    FrameHeader header = asked->effects.sent[frame].frame.header;
    header.frames = frames;
    return receiver.machine().OnHeader(PeerId::Worker(0), header).status();
  };
  EXPECT_FALSE(announce(0, 2).ok());
  const uint16_t told = GetParam().dense ? 1 : 0;
  EXPECT_EQ(asked->effects.sent[0].frame.header.frames, told);
  EXPECT_TRUE(announce(0, told).ok());
  EXPECT_EQ(announce(0, 1).ok(), GetParam().factors());
  if (!GetParam().factors()) return;
  ASSERT_TRUE(Deliver(receiver.machine(), PeerId::Worker(0),
                      asked->effects.sent[0].frame)
                  .ok());
  EXPECT_TRUE(announce(1, told).ok());
  EXPECT_FALSE(announce(1, 1 - told).ok());
}

TEST_P(PeerEpochTest, TheSourceAnswersOnceInAnEpoch) {
  HalfFinished cluster(GetParam());
  cluster.EnterWithoutTwo();
  const Frame pull = cluster.Pull(1, 1);
  Machine& source = cluster.worker(0).machine();
  EXPECT_EQ(DeliverAll(source, PeerId::Worker(1), {pull}).sent.size(),
            GetParam().frames_kept());
  const auto again = Deliver(source, PeerId::Worker(1), pull);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->landing, Landing::Kind::kDiscard);
}

TEST_P(PeerEpochTest, AWorkerThatIsNotTheSourceRefuses) {
  HalfFinished cluster(GetParam());
  cluster.EnterWithoutTwo();
  const auto refused = [&](int source, int asking, int64_t round) {
    const absl::Status status =
        Deliver(cluster.worker(source).machine(), PeerId::Worker(asking),
                cluster.Pull(asking, round))
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("does not send that round to other workers"));
  };
  refused(1, 0, 0);
  refused(1, 0, 1);
  for (const int64_t round : {-1, 0, 2}) refused(0, 1, round);
}

TEST_P(PeerEpochTest, OnlyFramesOfTheSourceCountForTheRound) {
  HalfFinished cluster(GetParam());
  cluster.Enter([](Job& job) {
    job.workers = {{0, 0}, {1, 0}, {3, 2}};  // Worker 3 has just joined.
    job.history.finished_rounds = {{0, 1, /*source=*/0, /*contributors=*/3}};
  });
  const absl::Status status =
      cluster.worker(1)
          .machine()
          .OnHeader(PeerId::Worker(3),
                    cluster.FirstFrame(/*from=*/3, /*round=*/1).header)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("this round comes whole from worker 0"));
}

TEST_P(PeerEpochTest, ASourceThatHasLeftServesToo) {
  HalfFinished cluster(GetParam());
  cluster.Enter([](Job& job) {
    job.workers = {{1, 0}};
    job.crew.left_workers = {0};
    job.history.finished_rounds = {{0, 1, /*source=*/0, /*contributors=*/3}};
  });
  const std::vector<float> expected = cluster.Outcome(0);
  cluster.Settle();
  EXPECT_EQ(cluster.worker(1).syncer().done_round(), 1);
  EXPECT_EQ(cluster.Outcome(1), expected);
  cluster.Run({1}, 2);
}

TEST_P(PeerEpochTest, AWorkerThatHasLeftTakesNoFrames) {
  PeerCluster cluster(2, GetParam());
  cluster.PushRound(1, 0);
  cluster.Enter([](Job& job) {
    job.workers = {{0, 0}};
    job.crew.left_workers = {1};
  });
  cluster.PushRound(0, 0);
  const absl::Status status =
      cluster.worker(1)
          .machine()
          .OnHeader(PeerId::Worker(0), cluster.FirstFrame(0, 0).header)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has left"));
  EXPECT_EQ(cluster.worker(0).syncer().done_round(), 0);
}

}  // namespace
}  // namespace nereus
