// A round between workers that one of them has finished before an epoch ends,
// by each scheme: what the source of the round sends, and what it refuses. The
// laws of tests/simulation say that all workers then have the same bits.

#include "worker/machine/peer_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/plan/ring_segments.h"
#include "tests/testing/machine_harness.h"
#include "tests/worker/worker_under_test.h"

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

// Workers with one layer, and a network that loses the frames that a test
// names.
class Cluster {
 public:
  Cluster(int workers, const Case& c) : case_(c), job_(PeerJob(workers, c)) {
    for (const EpochWorker& each : job_->workers) {
      auto& made = workers_[each.rank];
      made = std::make_unique<WorkerUnderTest>(job_, each.rank);
      made->Start();
      made->ReceiveResults(kInitialRound, IntegerValues(made->elements(), 3));
    }
  }

  void Kill(int rank) { workers_.erase(rank); }
  WorkerUnderTest& worker(int rank) { return *workers_.at(rank); }

  // Enters an epoch with all workers of it that live. Returns what each worker
  // asked for, undelivered.
  std::map<int, Effects> Enter(const std::function<void(Job&)>& edit) {
    job_ = EpochAfter(*job_, edit);
    std::map<int, Effects> effects;
    for (auto& [rank, worker] : workers_) {
      effects[rank] = worker->Enter(job_);
    }
    return effects;
  }
  const Job& job() const { return *job_; }

  Effects Push(int rank, int64_t round) {
    if (!case_.factors() || case_.PushesDense(rank, round)) {
      gradients_[rank] = FloatBuffer(Noise(kElements, rank, round, 0));
      return worker(rank).Push(round, gradients_[rank]);
    }
    gradients_[rank] = Buffer::AllocateZeroed(kElements * 4);
    return worker(rank).PushFactors(
        round,
        {FloatBuffer(Noise(kRows * kM, rank, round, 0)),
         FloatBuffer(Noise(kRows * kN, rank, round, 1)), gradients_[rank]});
  }

  // True if a frame to this worker is lost.
  using Loses = std::function<bool(const Frame& frame, int to)>;

  // The first frame of a worker's contribution.
  Frame FirstFrame(int from, int64_t round) const {
    const bool ring = job_->routes[0].scheme == Scheme::kRing;
    const int position = job_->PositionOf(from);
    const RingSegments segments(kElements, job_->ContributorsOf(round));
    const int64_t length = ring ? segments.Length(position) : kRows * kM;
    return FramesOf(*job_, PeerId::Worker(from),
                    ring ? FrameKind::kSum : FrameKind::kFactors, 0, position,
                    round, Noise(std::max<int64_t>(length, 1), from, round, 0))
        .front();
  }

  // Delivers what `from` sent, and the answers.
  void Bring(int from, const Effects& effects, const Loses& lost = {}) {
    for (const auto& sent : effects.sent) {
      for (const EpochWorker& each : job_->workers) {
        const PeerId to = PeerId::Worker(each.rank);
        if (!sent.IsFor(to) || (lost && lost(sent.frame, each.rank))) {
          continue;
        }
        BringOne(from, each.rank, sent.frame, lost);
      }
    }
  }

  // The result of a round: the parameters, or the mean gradient.
  std::vector<float> Outcome(int rank) {
    const bool here = job_->options.optimizer_place == OptimizerPlace::kServer;
    return FloatsOf(here ? worker(rank).parameters() : gradients_.at(rank));
  }
  void ExpectDone(const std::vector<int>& ranks, int64_t round) {
    for (const int rank : ranks) {
      EXPECT_EQ(worker(rank).syncer().done_round(), round) << rank;
      EXPECT_EQ(Outcome(rank), Outcome(ranks[0])) << rank;
    }
  }
  // Runs a whole round of these workers.
  void Run(const std::vector<int>& ranks, int64_t round) {
    for (const int rank : ranks) Bring(rank, Push(rank, round));
    ExpectDone(ranks, round);
  }

 private:
  void BringOne(int from, int to, const Frame& frame, const Loses& lost) {
    const auto delivery =
        Deliver(worker(to).machine(), PeerId::Worker(from), frame);
    ASSERT_TRUE(delivery.ok()) << delivery.status();
    Bring(to, delivery->effects, lost);
  }

  const Case case_;
  JobPtr job_;
  std::map<int, std::unique_ptr<WorkerUnderTest>> workers_;
  std::map<int, Buffer> gradients_;
};

class PeerEpochTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    SchemesAndPlaces, PeerEpochTest,
    testing::Values(Case{Scheme::kFactor, OptimizerPlace::kServer},
                    Case{Scheme::kFactor, OptimizerPlace::kWorker},
                    Case{Scheme::kFactor, OptimizerPlace::kServer,
                         WireType::kFloat32, /*dense=*/true},
                    Case{Scheme::kFactor, OptimizerPlace::kWorker,
                         WireType::kFloat16, /*dense=*/true},
                    Case{Scheme::kRing, OptimizerPlace::kServer},
                    Case{Scheme::kRing, OptimizerPlace::kWorker},
                    // Frames of a recovered round are cut in another way than
                    // those whose values were rounded.
                    Case{Scheme::kRing, OptimizerPlace::kServer,
                         WireType::kFloat16}),
    [](const auto& info) {
      return absl::StrCat(SchemeName(info.param.scheme), "_",
                          OptimizerPlaceName(info.param.place),
                          info.param.wire == WireType::kFloat32 ? "" : "_fp16",
                          info.param.dense ? "_dense" : "");
    });

// Returns three workers. The last frames of `round` came to worker 0, which
// finished it, but not to worker 1. Then worker 2 died.
Cluster HalfFinished(const Case& c, int64_t round = 1) {
  Cluster cluster(3, c);
  for (int64_t done = 0; done < round; ++done) cluster.Run({0, 1, 2}, done);
  cluster.Bring(0, cluster.Push(0, round));
  cluster.Bring(1, cluster.Push(1, round));
  cluster.Bring(2, cluster.Push(2, round), [](const Frame& frame, int to) {
    return to == 1 && frame.header.kind != FrameKind::kSum;
  });
  EXPECT_EQ(cluster.worker(0).syncer().done_round(), round);
  EXPECT_EQ(cluster.worker(1).syncer().done_round(), round - 1);
  cluster.Kill(2);
  return cluster;
}

void WithoutTwo(Job& job) {
  job.workers = {{0, 0}, {1, 0}};
  job.history.finished_rounds = {{0, 1, /*source=*/0, /*contributors=*/3}};
}

TEST_P(PeerEpochTest, ReportsSayWhichRoundIsDone) {
  Cluster cluster = HalfFinished(GetParam());
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
  Cluster cluster = HalfFinished(GetParam(), /*round=*/4);
  auto entered = cluster.Enter([](Job& job) {
    job.workers = {{0, 0}, {1, 0}};
    job.history.finished_rounds = {{0, 4, /*source=*/0, /*contributors=*/3}};
  });
  ASSERT_EQ(entered[1].sent.size(), 1u);
  EXPECT_EQ(entered[1].sent[0].to, PeerId::Worker(0));
  EXPECT_EQ(entered[1].sent[0].frame.header.kind, FrameKind::kPullRound);
  EXPECT_EQ(entered[1].sent[0].frame.header.round, 4);
  EXPECT_EQ(cluster.worker(1).syncer().Missing(), "worker 0");
  cluster.Bring(1, entered[1]);
  cluster.ExpectDone({0, 1}, 4);
  EXPECT_EQ(cluster.worker(1).syncer().contributors(), 3);
  cluster.Run({0, 1}, 5);
}

TEST_P(PeerEpochTest, FramesOfARoundTellAlikeOfDenseGradients) {
  Cluster cluster = HalfFinished(GetParam());
  auto entered = cluster.Enter(WithoutTwo);
  const auto asked = Deliver(cluster.worker(0).machine(), PeerId::Worker(1),
                             entered[1].sent[0].frame);
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
  Cluster cluster = HalfFinished(GetParam());
  auto entered = cluster.Enter(WithoutTwo);
  const Frame pull = entered[1].sent[0].frame;
  Machine& source = cluster.worker(0).machine();
  EXPECT_EQ(DeliverAll(source, PeerId::Worker(1), {pull}).sent.size(),
            GetParam().frames_kept());
  const auto again = Deliver(source, PeerId::Worker(1), pull);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->landing, Landing::Kind::kDiscard);
}

TEST_P(PeerEpochTest, AWorkerThatIsNotTheSourceRefuses) {
  Cluster cluster = HalfFinished(GetParam());
  cluster.Enter(WithoutTwo);
  const auto refused = [&](int source, int asking, int64_t round) {
    const absl::Status status =
        Deliver(cluster.worker(source).machine(), PeerId::Worker(asking),
                PullFrame(cluster.job(), PeerId::Worker(asking),
                          FrameKind::kPullRound, 0, 0, round))
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
  Cluster cluster = HalfFinished(GetParam());
  cluster.Enter([](Job& job) {
    WithoutTwo(job);
    job.workers.push_back({3, 2});  // A worker that has just joined.
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

TEST_P(PeerEpochTest, AWorkerThatHasLeftTakesNoFrames) {
  Cluster cluster(2, GetParam());
  cluster.Push(1, 0);
  cluster.Enter([](Job& job) {
    job.workers = {{0, 0}};
    job.crew.left_workers = {1};
  });
  cluster.Push(0, 0);
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
