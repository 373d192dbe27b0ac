// Rounds between workers from one epoch to the next, by each scheme. All
// workers must have the same bits, so the tests run several workers.

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
using testing::IsEmpty;

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
  // Number of frames of a worker's contribution to a small round: one for each
  // factor, or one for all.
  size_t frames_sent(int rank) const {
    return factors() && !PushesDense(rank, /*round=*/0) ? 2 : 1;
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
    for (const EpochWorker& each : job_->workers) Add(each.rank);
  }

  // Fetches the first values of a new job.
  void StartAll() {
    for (auto& [rank, worker] : workers_) {
      worker->Start();
      worker->ReceiveResults(kInitialRound,
                             IntegerValues(worker->elements(), 3));
    }
  }

  void Add(int rank) {
    workers_[rank] = std::make_unique<WorkerUnderTest>(job_, rank);
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
    return PushThatOf(rank, rank, round);
  }
  // The values of worker `of` after its last round.
  Effects PushThatOf(int of, int rank, int64_t round) {
    if (!case_.factors() || case_.PushesDense(of, round)) {
      gradients_[rank] = FloatBuffer(Noise(kElements, of, round, 0));
      return worker(rank).Push(round, gradients_[rank]);
    }
    gradients_[rank] = Buffer::AllocateZeroed(kElements * 4);
    return worker(rank).PushFactors(
        round,
        {FloatBuffer(Noise(kRows * kM, of, round, 0)),
         FloatBuffer(Noise(kRows * kN, of, round, 1)), gradients_[rank]});
  }

  // Returns true if a frame to this worker is lost.
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
      for (const int32_t leaver : job_->crew.left_workers) {
        if (sent.to == PeerId::Worker(leaver)) {
          BringOne(from, leaver, sent.frame, lost);
        }
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
  cluster.StartAll();
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

TEST_P(PeerEpochTest, AWorkerThatIsBehindGetsTheRoundFromTheSource) {
  Cluster cluster = HalfFinished(GetParam());
  auto entered = cluster.Enter(WithoutTwo);
  EXPECT_THAT(entered[0].sent, IsEmpty());
  ASSERT_EQ(entered[1].sent.size(), 1u);
  EXPECT_EQ(entered[1].sent[0].to, PeerId::Worker(0));
  EXPECT_EQ(entered[1].sent[0].frame.header.kind, FrameKind::kPullRound);
  EXPECT_EQ(entered[1].sent[0].frame.header.round, 1);
  EXPECT_EQ(cluster.worker(1).syncer().Missing(), "worker 0");
  cluster.Bring(1, entered[1]);
  cluster.ExpectDone({0, 1}, 1);
  EXPECT_EQ(cluster.worker(1).syncer().contributors(), 3);
  for (int64_t round = 2; round < 5; ++round) cluster.Run({0, 1}, round);
}

// The memory of round 4 had dense gradients in round 2.
TEST_P(PeerEpochTest, ARoundFromTheSourceHasNothingOfAnEarlierRound) {
  Cluster cluster = HalfFinished(GetParam(), /*round=*/4);
  auto entered = cluster.Enter([](Job& job) {
    job.workers = {{0, 0}, {1, 0}};
    job.history.finished_rounds = {{0, 4, /*source=*/0, /*contributors=*/3}};
  });
  cluster.Bring(1, entered[1]);
  cluster.ExpectDone({0, 1}, 4);
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

TEST_P(PeerEpochTest, TheSourceMayBeAStepAhead) {
  Cluster cluster = HalfFinished(GetParam());
  cluster.worker(0).machine().Freeze();
  const Effects held = cluster.Push(0, 2);
  EXPECT_THAT(held.sent, IsEmpty());
  auto entered = cluster.Enter(WithoutTwo);
  // The frames of round 2 come to worker 1 before the frames of round 1.
  EXPECT_FALSE(entered[0].sent.empty());
  cluster.Bring(0, entered[0]);
  cluster.Bring(1, entered[1]);
  EXPECT_EQ(cluster.worker(1).syncer().done_round(), 1);
  cluster.Bring(1, cluster.Push(1, 2));
  cluster.ExpectDone({0, 1}, 2);
  cluster.Run({0, 1}, 3);
}

// Another epoch begins before the answer has come.
TEST_P(PeerEpochTest, TheSourceKeepsTheRoundThroughSeveralEpochs) {
  Cluster cluster = HalfFinished(GetParam());
  for (int epoch = 0; epoch < 3; ++epoch) {
    auto entered = cluster.Enter(WithoutTwo);
    ASSERT_EQ(entered[1].sent.size(), 1u);
    // The answer, or a part of it, is lost.
    const auto asked = Deliver(cluster.worker(0).machine(), PeerId::Worker(1),
                               entered[1].sent[0].frame);
    ASSERT_TRUE(asked.ok()) << asked.status();
    ASSERT_EQ(asked->effects.sent.size(), GetParam().frames_kept());
    for (size_t i = 0; i + 1 < GetParam().frames_kept(); ++i) {
      ASSERT_TRUE(Deliver(cluster.worker(1).machine(), PeerId::Worker(0),
                          asked->effects.sent[i].frame)
                      .ok());
    }
  }
  auto entered = cluster.Enter(WithoutTwo);
  cluster.Bring(1, entered[1]);
  cluster.ExpectDone({0, 1}, 1);
  cluster.Run({0, 1}, 2);
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

TEST_P(PeerEpochTest, ASourceThatHasLeftServesToo) {
  Cluster cluster = HalfFinished(GetParam());
  auto entered = cluster.Enter([](Job& job) {
    job.workers = {{1, 0}};
    job.crew.left_workers = {0};
    job.history.finished_rounds = {{0, 1, 0, 3}};
  });
  const std::vector<float> expected = cluster.Outcome(0);
  cluster.Bring(1, entered[1]);
  EXPECT_EQ(cluster.worker(1).syncer().done_round(), 1);
  EXPECT_EQ(cluster.Outcome(1), expected);
  cluster.Run({1}, 2);
}

// The worker has no part in the round that is open.
TEST_P(PeerEpochTest, AWorkerThatHasLeftWaitsForNoOther) {
  Cluster cluster(3, GetParam());
  cluster.StartAll();
  cluster.Run({0, 1, 2}, 0);
  cluster.Kill(2);
  cluster.Enter([](Job& job) {
    job.workers = {{1, 0}};
    job.crew.left_workers = {0};
  });
  EXPECT_EQ(cluster.worker(0).syncer().Missing(), "");
}

// No worker has finished the round: the workers that live do it again.
TEST_P(PeerEpochTest, AnOpenRoundIsDoneAgainWithoutTheLostWorker) {
  Cluster cluster(3, GetParam());
  Cluster expected(2, GetParam());
  cluster.StartAll();
  expected.StartAll();
  // Worker 0 dies: the positions of the other workers change.
  cluster.Bring(0, cluster.Push(0, 0));
  cluster.Bring(2, cluster.Push(2, 0),
                [](const Frame&, int to) { return to == 1; });
  cluster.Push(1, 0);
  cluster.Kill(0);
  auto entered = cluster.Enter([](Job& job) {
    job.workers = {{1, 0}, {2, 0}};
  });
  for (const int rank : {2, 1}) {
    EXPECT_EQ(entered[rank].sent.size(), GetParam().frames_sent(rank));
    cluster.Bring(rank, entered[rank]);
  }
  cluster.ExpectDone({1, 2}, 0);
  EXPECT_EQ(cluster.worker(1).syncer().contributors(), 2);
  // The result is as if worker 0 had never been there.
  for (const int rank : {0, 1}) {
    expected.Bring(rank, expected.PushThatOf(rank + 1, rank, 0));
  }
  EXPECT_EQ(expected.Outcome(1), cluster.Outcome(1));
  EXPECT_EQ(FloatsOf(expected.worker(0).parameters()),
            FloatsOf(cluster.worker(1).parameters()));
  cluster.Run({1, 2}, 1);
}

// The report must stay true.
TEST_P(PeerEpochTest, AFrozenWorkerTakesNoFrames) {
  Cluster cluster(2, GetParam());
  cluster.StartAll();
  cluster.Push(0, 0);
  cluster.worker(0).machine().Freeze();
  const Effects pushed = cluster.Push(1, 0);
  for (const auto& sent : pushed.sent) {
    const auto delivery =
        Deliver(cluster.worker(0).machine(), PeerId::Worker(1), sent.frame);
    ASSERT_TRUE(delivery.ok()) << delivery.status();
    EXPECT_EQ(delivery->landing, Landing::Kind::kDiscard);
  }
  EXPECT_EQ(cluster.worker(0).syncer().done_round(), kInitialRound);
  auto entered = cluster.Enter([](Job&) {});
  for (const int rank : {0, 1}) cluster.Bring(rank, entered[rank]);
  cluster.ExpectDone({0, 1}, 0);
}

TEST_P(PeerEpochTest, APushOnAFrozenWorkerFinishesNoRound) {
  Cluster cluster(2, GetParam());
  cluster.StartAll();
  cluster.Bring(1, cluster.Push(1, 0));
  cluster.worker(0).machine().Freeze();
  EXPECT_THAT(cluster.Push(0, 0).done, IsEmpty());
  EXPECT_EQ(cluster.worker(0).syncer().done_round(), kInitialRound);
  auto entered = cluster.Enter([](Job&) {});
  for (const int rank : {1, 0}) cluster.Bring(rank, entered[rank]);
  cluster.ExpectDone({0, 1}, 0);
}

// Returns a job in which worker 7 joins two workers that have done rounds 0 and
// 1.
Cluster WithJoiner(const Case& c, bool next_pushed) {
  Cluster cluster(2, c);
  cluster.StartAll();
  for (const int64_t round : {0, 1}) cluster.Run({0, 1}, round);
  if (next_pushed) {
    for (const int rank : {0, 1}) {
      cluster.worker(rank).machine().Freeze();
      cluster.Push(rank, 2);
    }
  }
  return cluster;
}

TEST_P(PeerEpochTest, AJoinerHasTheBitsOfTheOtherWorkers) {
  Cluster cluster = WithJoiner(GetParam(), /*next_pushed=*/false);
  cluster.Enter([](Job& job) {
    job.workers.push_back({7, 2});
    job.history.first_step = 2;
    job.history.donor = 1;
  });
  cluster.Add(7);
  const Effects started = cluster.worker(7).Start();
  ASSERT_EQ(started.sent.size(), 1u);
  EXPECT_EQ(started.sent[0].to, PeerId::Worker(1));
  EXPECT_TRUE(cluster.worker(7).machine().Report().peer_layers.empty());
  cluster.Bring(7, started);
  const bool here = GetParam().place == OptimizerPlace::kServer;
  // The update of the caller's optimizer comes before its next push.
  EXPECT_EQ(cluster.worker(7).syncer().done_round(), here ? 1 : -2);
  for (const int rank : {0, 1}) cluster.Bring(rank, cluster.Push(rank, 2));
  EXPECT_EQ(cluster.worker(7).syncer().done_round(), 1);
  EXPECT_EQ(cluster.worker(7).syncer().contributors(), 0);
  EXPECT_EQ(FloatsOf(cluster.worker(7).parameters()),
            FloatsOf(cluster.worker(1).parameters()));
  EXPECT_EQ(cluster.worker(0).syncer().Missing(), "worker 7");
  cluster.Bring(7, cluster.Push(7, 2));
  cluster.ExpectDone({0, 1, 7}, 2);
  EXPECT_EQ(cluster.worker(0).syncer().contributors(), 3);
  for (int64_t round = 3; round < 6; ++round) {
    cluster.Run({7, 0, 1}, round);  // The momentum is the same.
  }
}

TEST_P(PeerEpochTest, ARoundBeforeTheJoinersFirstGoesOnWithoutIt) {
  Cluster cluster = WithJoiner(GetParam(), /*next_pushed=*/true);
  auto entered = cluster.Enter([](Job& job) {
    job.workers.push_back({7, 3});
    job.history.first_step = 3;
    job.history.donor = 0;
  });
  cluster.Add(7);
  // The joiner asks before the round is done.
  cluster.Bring(7, cluster.worker(7).Start());
  EXPECT_TRUE(cluster.worker(7).syncer().fetching());
  for (const int rank : {0, 1}) cluster.Bring(rank, entered[rank]);
  cluster.ExpectDone({0, 1}, 2);
  EXPECT_EQ(cluster.worker(0).syncer().contributors(), 2);
  const bool here = GetParam().place == OptimizerPlace::kServer;
  EXPECT_EQ(cluster.worker(7).syncer().fetching(), !here);
  for (const int rank : {0, 1}) cluster.Bring(rank, cluster.Push(rank, 3));
  EXPECT_EQ(cluster.worker(7).syncer().done_round(), 2);
  cluster.Bring(7, cluster.Push(7, 3));
  cluster.ExpectDone({0, 1, 7}, 3);
}

TEST_P(PeerEpochTest, AWorkerThatHasLeftTakesNoFrames) {
  Cluster cluster(2, GetParam());
  cluster.StartAll();
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
