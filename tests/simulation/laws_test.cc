// Tells every law events that keep it, and events that break it: a law that
// cannot fail finds no defect. No cluster runs here.

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/crc32c.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/laws/backup_law.h"
#include "tests/simulation/laws/bounded_memory_law.h"
#include "tests/simulation/laws/bounded_wait_law.h"
#include "tests/simulation/laws/checkpoint_law.h"
#include "tests/simulation/laws/counted_once_law.h"
#include "tests/simulation/laws/equal_replicas_law.h"
#include "tests/simulation/laws/finite_parameters_law.h"
#include "tests/simulation/laws/gathering_law.h"
#include "tests/simulation/laws/law_checker.h"
#include "tests/simulation/laws/lineup_law.h"
#include "tests/simulation/laws/one_machine_law.h"
#include "tests/simulation/laws/refusals_law.h"
#include "tests/simulation/laws/skipped_steps_law.h"
#include "tests/simulation/laws/unchanged_parameters_law.h"
#include "tests/testing/test_checkpoint.h"

namespace nereus {
namespace {

using testing::HasSubstr;

std::vector<LayerSpec> Layers() {
  return {{"fc1", LayerKind::kFullyConnected, 2, 32, 64, 1, true},
          {"bias", LayerKind::kVector, 1, 4, 4, 1}};
}

// View of a job with three workers and one server. The process of a worker has
// the worker's rank as its number.
class FakeView final : public ClusterView {
 public:
  FakeView() {
    job_.layers = Layers();
    job_.routes.resize(job_.layers.size());
    job_.workers = FirstWorkers(3);
    job_.history.base_round = kInitialRound;
    job_.placement = Placement::Make(job_.layers, 1).value();
    job_.shard_servers = FirstShardServers(1, /*backup=*/false);
  }

  absl::Time now() const override { return now_; }
  const Job& job() const override { return job_; }
  bool Counts(ProcessId worker) const override {
    return !gone_.contains(worker);
  }

  Job& job() { return job_; }
  void set_now(absl::Duration time) { now_ = absl::UnixEpoch() + time; }
  // Makes a worker count no more.
  void Lose(ProcessId worker) { gone_.insert(worker); }

 private:
  Job job_;
  absl::Time now_ = absl::UnixEpoch() + absl::Milliseconds(1500);
  std::set<ProcessId> gone_;
};

class LawsTest : public testing::Test {
 protected:
  LawsTest() : laws_(/*seed=*/17, Layers(), &view_) {}

  LayerPlace At(int rank, int layer, int64_t round) {
    return {rank, rank, layer, round, &view_.job()};
  }
  // Tells the laws that a worker has parameters of this checksum after a round.
  void TellDone(int rank, int64_t round, uint32_t checksum,
                bool skipped = false) {
    RoundDone done;
    done.place = At(rank, 0, round);
    done.skipped = skipped;
    done.parameters.checksum = checksum;
    laws_.Tell(done);
  }
  // Tells the laws that a worker has these values of layer 0 after a round.
  void TellValues(int rank, int64_t round, const std::vector<float>& values) {
    RoundDone done;
    done.place = At(rank, 0, round);
    done.parameters = {values,
                       Crc32c(values.data(), values.size() * sizeof(float))};
    laws_.Tell(done);
  }

  void ExpectKept() { EXPECT_TRUE(laws_.status().ok()) << laws_.status(); }
  // Expects a breach with all of `parts` in its message.
  void ExpectBroken(const std::vector<std::string>& parts) {
    EXPECT_EQ(laws_.status().code(), absl::StatusCode::kInternal)
        << laws_.status();
    for (const std::string& part : parts) {
      EXPECT_THAT(std::string(laws_.status().message()), HasSubstr(part));
    }
  }

  FakeView view_;
  LawChecker laws_;
};

TEST_F(LawsTest, BreachNamesSeedTimeLayerRoundWorkerAndBothValues) {
  laws_.Add(std::make_unique<EqualReplicasLaw>());
  TellDone(0, 5, 0xaa);
  TellDone(1, 5, 0xbb);
  ExpectBroken({"replicas are equal", "seed 17", "at 1.5s", "layer 0 fc1",
                "round 5", "worker 1", "worker 0", "bb", "aa"});
}

TEST_F(LawsTest, FirstBreachIsKept) {
  laws_.Add(std::make_unique<EqualReplicasLaw>());
  TellDone(0, 5, 0xaa);
  TellDone(1, 5, 0xbb);
  TellDone(2, 5, 0xcc);
  ExpectBroken({"worker 1"});
}

TEST_F(LawsTest, EqualReplicasKeepTheLaw) {
  laws_.Add(std::make_unique<EqualReplicasLaw>());
  TellDone(0, 5, 0xaa);
  TellDone(1, 5, 0xaa);
  TellDone(1, 6, 0xbb);
  ExpectKept();
}

TEST_F(LawsTest, DifferentMeansBreakEqualReplicas) {
  laws_.Add(std::make_unique<EqualReplicasLaw>());
  for (const int rank : {0, 1}) {
    RoundDone done;
    done.place = At(rank, 1, 3);
    done.mean = LayerValues{{}, static_cast<uint32_t>(rank)};
    laws_.Tell(done);
  }
  ExpectBroken({"mean gradient", "layer 1 bias", "round 3"});
}

TEST_F(LawsTest, MeansOfSkippedStepMayDiffer) {
  laws_.Add(std::make_unique<EqualReplicasLaw>());
  for (const int rank : {0, 1}) {
    RoundDone done;
    done.place = At(rank, 1, 3);
    done.skipped = true;
    done.mean = LayerValues{{}, static_cast<uint32_t>(rank)};
    laws_.Tell(done);
  }
  ExpectKept();
}

TEST_F(LawsTest, UpdatesOfWorkersBreakEqualReplicas) {
  laws_.Add(std::make_unique<EqualReplicasLaw>());
  laws_.Tell(ParametersUpdated{At(0, 0, 2), {{}, 1}});
  laws_.Tell(ParametersUpdated{At(2, 0, 2), {{}, 2}});
  ExpectBroken({"worker 2", "worker 0"});
}

TEST_F(LawsTest, WorkerThatCountsNoMoreMayDiffer) {
  laws_.Add(std::make_unique<EqualReplicasLaw>());
  TellDone(0, 5, 0xaa);
  view_.Lose(0);
  TellDone(1, 5, 0xbb);
  TellDone(0, 5, 0xcc);
  ExpectKept();
  TellDone(2, 5, 0xdd);
  ExpectBroken({"worker 2", "worker 1"});
}

TEST_F(LawsTest, StepsThatAreDoneAgainMayDiffer) {
  laws_.Add(std::make_unique<EqualReplicasLaw>());
  TellDone(0, 5, 0xaa);
  view_.job().history.base_round = 3;
  laws_.Tell(EpochBegun{&view_.job(), /*all_from_base=*/true, {}});
  TellDone(1, 5, 0xbb);
  ExpectKept();
}

TEST_F(LawsTest, LayerThatGoesAnotherWayMayHaveOtherBitsOnAllWorkers) {
  laws_.Add(std::make_unique<EqualReplicasLaw>());
  laws_.Tell(EpochBegun{&view_.job(), /*all_from_base=*/false, {}});
  TellDone(0, 5, 0xaa);
  view_.job().routes[0].scheme = Scheme::kRing;
  laws_.Tell(EpochBegun{&view_.job(), /*all_from_base=*/false, {}});
  laws_.Tell(FetchedAgain{At(0, 0, 5), {{}, 0xbb}});
  TellDone(1, 5, 0xbb);
  ExpectKept();
  laws_.Tell(FetchedAgain{At(2, 0, 5), {{}, 0xaa}});
  ExpectBroken({"worker 2", "worker 0"});
}

TEST_F(LawsTest, SkippedStepThatChangesParametersBreaksTheLaw) {
  laws_.Add(std::make_unique<UnchangedParametersLaw>(/*is_rounded=*/false));
  TellDone(0, 1, 0xaa);
  TellDone(0, 2, 0xaa, /*skipped=*/true);
  TellDone(0, 3, 0xbb);
  ExpectKept();
  TellDone(0, 4, 0xcc, /*skipped=*/true);
  ExpectBroken({"skipped step", "bb before", "cc after", "round 4"});
}

TEST_F(LawsTest, NewPlanThatBeginsWithOtherParametersBreaksTheLaw) {
  laws_.Add(std::make_unique<UnchangedParametersLaw>(/*is_rounded=*/false));
  TellDone(0, 1, 0xaa);
  laws_.Tell(FetchedAgain{At(0, 0, 1), {{}, 0xaa}});
  ExpectKept();
  laws_.Tell(FetchedAgain{At(0, 0, 1), {{}, 0xbb}});
  ExpectBroken({"another plan", "aa before", "bb after"});
}

TEST_F(LawsTest, NewPlanMayRoundParametersToTheWire) {
  laws_.Add(std::make_unique<UnchangedParametersLaw>(/*is_rounded=*/true));
  TellDone(0, 1, 0xaa);
  laws_.Tell(FetchedAgain{At(0, 0, 1), {{}, 0xbb}});
  ExpectKept();
}

TEST_F(LawsTest, NanInParametersBreaksTheLaw) {
  laws_.Add(std::make_unique<FiniteParametersLaw>());
  TellValues(1, 2, {1.0f, 2.0f});
  ExpectKept();
  TellValues(1, 3, {1.0f, std::numeric_limits<float>::quiet_NaN()});
  ExpectBroken({"element 1", "nan", "worker 1", "round 3"});
}

TEST_F(LawsTest, WorkersThatGatherOtherValuesBreakTheLaw) {
  laws_.Add(std::make_unique<GatheringLaw>());
  const Gathered answer = {{3, 0}, {"a", "b"}, ""};
  laws_.Tell(WorkerGathered{0, 1, "a", answer});
  laws_.Tell(WorkerGathered{1, 1, "b", answer});
  ExpectKept();
  laws_.Tell(WorkerGathered{2, 1, "c", {{3, 0}, {"a", "c"}, ""}});
  ExpectBroken({"the values are a, c, another worker got a, b", "worker 2"});
}

// Worker 1, which the coordinator has given up, gets its answer late.
TEST_F(LawsTest, WorkersThatGoBackMayGatherOtherValues) {
  laws_.Add(std::make_unique<GatheringLaw>());
  view_.job().epoch = 4;
  laws_.Tell(WorkerGathered{0, 3, "a", {{3, 0}, {"a", "b"}, ""}});
  laws_.Tell(EpochBegun{&view_.job(), /*all_from_base=*/true, {}});
  laws_.Tell(WorkerGathered{0, 4, "c", {{3, 0}, {"c"}, ""}});
  laws_.Tell(WorkerGathered{1, 3, "b", {{3, 0}, {"a", "b"}, ""}});
  ExpectKept();
  laws_.Tell(WorkerGathered{1, 5, "b", {{3, 0}, {"a", "b"}, ""}});
  ExpectBroken({"the values are a, b, another worker got c", "worker 1"});
}

TEST_F(LawsTest, GatheringWithoutTheWorkersOwnValueBreaksTheLaw) {
  laws_.Add(std::make_unique<GatheringLaw>());
  laws_.Tell(WorkerGathered{2, 1, "c", {{3, 0}, {"a", "b"}, ""}});
  ExpectBroken({"value c is not once among a, b"});
}

TEST_F(LawsTest, GatheringThatFailsBreaksTheLaw) {
  laws_.Add(std::make_unique<GatheringLaw>());
  laws_.Tell(
      WorkerGathered{2, 1, "c", {{3, 0}, {}, "worker w1 has begun step 4"}});
  ExpectBroken({"worker w1 has begun step 4"});
}

TEST_F(LawsTest, StepThatOnlyOneWorkerSkipsBreaksTheLaw) {
  auto& law = laws_.Add(std::make_unique<SkippedStepsLaw>());
  TellDone(0, 2, 0, /*skipped=*/true);
  TellDone(1, 2, 0, /*skipped=*/true);
  TellDone(0, 3, 0);
  ExpectKept();
  EXPECT_TRUE(law.Skipped(2));
  EXPECT_FALSE(law.Skipped(3));
  TellDone(1, 3, 0, /*skipped=*/true);
  ExpectBroken({"worker 1 has skipped the step", "worker 0 has done the step"});
}

TEST_F(LawsTest, WaitWithoutAnExcuseBreaksTheLaw) {
  laws_.Add(std::make_unique<BoundedWaitLaw>(absl::Seconds(4)));
  laws_.Tell(StepDone{0});
  view_.set_now(absl::Seconds(9));
  EXPECT_TRUE(laws_.CheckTime().ok());
  view_.set_now(absl::Seconds(10));
  EXPECT_EQ(laws_.CheckTime().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(laws_.CheckTime().message()),
              testing::AllOf(HasSubstr("seed 17"), HasSubstr("at 10s")));
  // A fault excuses the wait, and the run may go on.
  laws_.Tell(Disturbed{});
  EXPECT_TRUE(laws_.CheckTime().ok());
  ExpectKept();
}

TEST_F(LawsTest, FaultsDoNotExcuseAWaitBeyondPatience) {
  auto& law = laws_.Add(std::make_unique<BoundedWaitLaw>(absl::Seconds(4)));
  law.set_patience(absl::Seconds(20));
  laws_.Tell(StepDone{0});
  view_.set_now(absl::Seconds(22));
  laws_.Tell(Disturbed{});
  EXPECT_EQ(laws_.CheckTime().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(LawsTest, ServerThatHoldsTooMuchBreaksBoundedMemory) {
  laws_.Add(std::make_unique<BoundedMemoryLaw>());
  const int64_t most = BoundedMemoryLaw::BytesMax(view_.job(), 0);
  // 68 values of 4 bytes; with momentum, 3 * 2 + 3 of each.
  EXPECT_EQ(most, 68 * 4 * 9);
  laws_.Tell(ServerHolds{0, most, &view_.job()});
  ExpectKept();
  laws_.Tell(ServerHolds{0, most + 1, &view_.job()});
  ExpectBroken({"server 0 holds 2449 bytes", "at most 2448"});
}

TEST_F(LawsTest, BackupThatDiffersFromItsPrimaryBreaksTheLaw) {
  laws_.Add(std::make_unique<BackupLaw>());
  laws_.Tell(BackupHas{0, 1, 0, 0, 4, {1, 2}, {1, 2}});
  ExpectKept();
  laws_.Tell(BackupHas{0, 1, 0, 0, 4, {1, 2}, {1, 3}});
  ExpectBroken({"backup process 1", "state 3", "primary process 0", "state 2"});
}

TEST_F(LawsTest, ResultThatTheBackupLacksBreaksTheLaw) {
  laws_.Add(std::make_unique<BackupLaw>());
  laws_.Tell(ResultShown{2, 0, 0, /*round=*/4, 1, /*backup_round=*/5});
  ExpectKept();
  laws_.Tell(ResultShown{2, 0, 0, /*round=*/5, 1, /*backup_round=*/5});
  ExpectBroken({"worker 2", "result of round 5", "round 5 open"});
}

TEST_F(LawsTest, AdmittedStrangerBreaksRefusals) {
  laws_.Add(std::make_unique<RefusalsLaw>());
  laws_.Tell(Admitted{3, /*stranger=*/false});
  ExpectKept();
  laws_.Tell(Admitted{3, /*stranger=*/true});
  ExpectBroken({"process 3", "was admitted"});
}

TEST_F(LawsTest, StrangerThatIsNotToldWhyBreaksRefusals) {
  laws_.Add(std::make_unique<RefusalsLaw>());
  laws_.Tell(MemberEnded{3, true, false, InvalidArgumentError("why")});
  ExpectKept();
  laws_.Tell(MemberEnded{3, true, false, InvalidArgumentError("")});
  ExpectBroken({"process 3", "was not told why"});
}

TEST_F(LawsTest, CoordinatorThatEndsItsOwnProcessBreaksRefusals) {
  laws_.Add(std::make_unique<RefusalsLaw>());
  const absl::Status flaps =
      UnavailableError("worker 1 cannot keep a connection to it");
  laws_.Tell(MemberEnded{1, false, /*is_coordinators=*/false, flaps});
  ExpectKept();
  laws_.Tell(MemberEnded{0, false, /*is_coordinators=*/true, flaps});
  ExpectBroken({"its own process, 0"});
}

TEST_F(LawsTest, RefusedFrameBreaksRefusals) {
  laws_.Add(std::make_unique<RefusalsLaw>());
  laws_.Tell(FrameRefused{1, 2, InvalidArgumentError("round 9")});
  ExpectBroken({"process 2 refused", "process 1", "round 9"});
}

TEST_F(LawsTest, DeathOfAProcessThatCouldAnswerBreaksRefusals) {
  laws_.Add(std::make_unique<RefusalsLaw>());
  const absl::Duration lease = absl::Seconds(4);
  const std::string late =
      "worker a was counted as dead: it was asked for a report and sent none "
      "within 4s";
  laws_.Tell(CountedAsDead{3, late, std::nullopt, lease});
  laws_.Tell(CountedAsDead{3, late, absl::Seconds(5), lease});
  laws_.Tell(
      CountedAsDead{3, "its session has ended", absl::Seconds(9), lease});
  ExpectKept();
  laws_.Tell(CountedAsDead{3, late, absl::Seconds(9), lease});
  ExpectBroken({"process 3 counts as dead", "able to answer for 9s"});
}

TEST_F(LawsTest, SpoiledPayloadBreaksRefusals) {
  laws_.Add(std::make_unique<RefusalsLaw>());
  laws_.Tell(FrameSpoiled{1, 2, DataLossError("crc 1, not 2")});
  ExpectBroken({"process 2 received", "process 1", "crc 1, not 2"});
}

TEST_F(LawsTest, UnreadableMessageBreaksRefusals) {
  laws_.Add(std::make_unique<RefusalsLaw>());
  laws_.Tell(Unreadable{"a message", InvalidArgumentError("field 3")});
  ExpectBroken({"a message cannot be read back", "field 3"});
}

// Returns a mean with the shares of three workers in the columns of their
// ranks.
std::vector<float> Shares(float first, float second, float third) {
  std::vector<float> mean(64);
  mean[0] = first;
  mean[1] = second;
  mean[2] = third;
  return mean;
}

class CountedOnceTest : public LawsTest {
 protected:
  CountedOnceTest() {
    JobOptions options;
    options.optimizer_place = OptimizerPlace::kWorker;
    laws_.Add(std::make_unique<CountedOnceLaw>(Layers(), options));
  }
  void TellMean(const std::vector<float>& mean) {
    RoundDone done;
    done.place = At(1, 0, 3);
    done.mean = LayerValues{mean, 0};
    laws_.Tell(done);
  }
};

TEST_F(CountedOnceTest, EqualSharesKeepTheLaw) {
  TellMean(Shares(1.0f / 3, 1.0f / 3, 1.0f / 3));
  // Worker 2 may have died: a mean of the other two keeps the law.
  TellMean(Shares(0.5f, 0.5f, 0));
  ExpectKept();
}

TEST_F(CountedOnceTest, ContributionThatCountsTwiceBreaksTheLaw) {
  TellMean(Shares(2.0f / 3, 1.0f / 3, 1.0f / 3));
  ExpectBroken({"worker 1", "round 3", "0.666667 0.333333 0.333333"});
}

TEST_F(CountedOnceTest, MissingContributionOfTheWorkerBreaksTheLaw) {
  TellMean(Shares(0.5f, 0, 0.5f));
  ExpectBroken({"worker 1", "0.5 0 0.5"});
}

TEST_F(LawsTest, ChangeOfParametersTellsAContributionThatCountsTwice) {
  JobOptions options;
  options.optimizer = ExactSgd();
  auto& law = laws_.Add(std::make_unique<CountedOnceLaw>(Layers(), options));
  TellValues(1, 2, Shares(8, 8, 8));
  // The learning rate is 1/2.
  TellValues(1, 3, Shares(7.75f, 7.75f, 8));
  ExpectKept();
  EXPECT_EQ(law.checked_count(), 1);
  TellValues(1, 4, Shares(7.25f, 7.5f, 8));
  ExpectBroken({"worker 1", "round 4", "1 0.5 0"});
}

TEST_F(LawsTest, BitsThatOneMachineDoesNotHaveBreakTheLaw) {
  Workload workload = IntegerWorkload(Layers());
  workload.layers[0].has_factors = false;
  JobOptions options;
  options.optimizer = ExactSgd();
  auto& law = laws_.Add(
      std::make_unique<OneMachineLaw>(workload, Lineup::Singles(2), options));
  std::vector<float> values(64);
  workload.initialize(0, 0, absl::MakeSpan(values));
  TellValues(0, kInitialRound, values);
  for (int64_t i = 0; i < 64; ++i) {
    const float sum = IntegerGradient(0, 0, 0, i) + IntegerGradient(1, 0, 0, i);
    values[i] -= 0.5f * sum / 2;
  }
  TellValues(0, 0, values);
  ExpectKept();
  EXPECT_EQ(law.checked_count(), 2);
  values[7] = std::nextafter(values[7], 1000.0f);
  TellValues(1, 0, values);
  ExpectBroken({"worker 1", "round 0", "element 7", "on one machine"});
}

// Members that enter the first epoch of three workers. In most tests, workers 0
// and 2 run on one machine and worker 1 on another one.
class LineupLawTest : public LawsTest {
 protected:
  LineupLawTest() : law_(laws_.Add(std::make_unique<LineupLaw>())) {
    view_.job().epoch = 1;
  }

  // Returns the job with the workers on these hosts.
  Job JobOn(const std::vector<int32_t>& hosts) {
    Job job = view_.job();
    for (size_t i = 0; i < hosts.size(); ++i) job.workers[i].host = hosts[i];
    job.seating = Seating(job.workers, job.layers, job.placement);
    return job;
  }
  // Tells the law that a process enters the epoch of `job`, whose workers have
  // these claims.
  void Enter(ProcessId process, const Job& job,
             const std::vector<HostClaim>& claims,
             const std::set<PeerId>& apart = {}) {
    EpochStart start;
    start.job = std::make_shared<const Job>(job);
    for (const EpochWorker& each : job.workers) {
      start.epoch_members.push_back(
          {PeerId::Worker(each.rank), 1, "", each.host});
    }
    laws_.Tell(EpochEntered{process, &start, claims, apart});
  }

  const HostClaim one_ = {"", "one"};
  const HostClaim two_ = {"rack", "two"};
  const HostClaim three_ = {"rack", "three"};
  LineupLaw& law_;
};

TEST_F(LineupLawTest, EqualLineupsKeepTheLaw) {
  view_.job().workers[2].first_step = 5;
  const Job job = JobOn({0, 1, 0});
  laws_.Tell(EpochBegun{&job, false, {}});
  Enter(0, job, {one_, two_, one_});
  Enter(1, job, {one_, two_, one_});
  // The next epoch has a worker that does not know its machine.
  view_.job().epoch = 2;
  Enter(0, JobOn({0, -1, 2}), {one_, {}, three_});
  ExpectKept();
  EXPECT_EQ(law_.checked_count(), 4);
}

TEST_F(LineupLawTest, MemberThatDerivesOtherHostsBreaksTheLaw) {
  Enter(0, JobOn({0, 1, 0}), {one_, two_, one_});
  ExpectKept();
  Enter(1, JobOn({0, 1, 1}), {one_, two_, two_});
  ExpectBroken({"process 1 derives hosts of round 0: 0 | 1 2",
                "process 0 derives hosts of round 0: 0 2 | 1"});
}

TEST_F(LineupLawTest, MemberThatDerivesOtherCarriersBreaksTheLaw) {
  Job job = JobOn({0, 1, 0});
  Enter(0, job, {one_, two_, one_});
  ExpectKept();
  // Slots count layers with and without factors apart, so the carriers of layer
  // 0 change.
  std::vector<LayerSpec> layers = job.layers;
  layers[0].has_factors = false;
  job.seating = Seating(job.workers, layers, job.placement);
  Enter(1, job, {one_, two_, one_});
  ExpectBroken({"process 1 derives carriers of round 0, layer 0: 0 1",
                "process 0 derives carriers of round 0, layer 0: 2 1"});
}

TEST_F(LineupLawTest, LineupWithoutAContributorBreaksTheLaw) {
  Job job = JobOn({0, 1, 0});
  job.seating = Seating(absl::MakeConstSpan(job.workers).first(2), job.layers,
                        job.placement);
  Enter(0, job, {one_, two_, one_});
  ExpectBroken({"process 0", "line-up of the hosts 0 | 1", "names 0 2 | 1"});
}

TEST_F(LineupLawTest, ClaimThatGetsASecondNumberBreaksTheLaw) {
  Enter(0, JobOn({0, 1, 0}), {one_, two_, one_});
  view_.job().epoch = 2;
  Enter(0, JobOn({2, 1, 2}), {one_, two_, one_});
  ExpectBroken({"worker 0", "machine \"one\"", "had host 0", "has host 2"});
}

TEST_F(LineupLawTest, TwoClaimsWithOneNumberBreakTheLaw) {
  Enter(0, JobOn({0, 1, 1}), {one_, two_, three_});
  ExpectBroken({"worker 2", "machine \"three\"", "host 1 of", "\"two\""});
}

TEST_F(LineupLawTest, ProcessThatDoesNotKnowItsMachineHasNoNumber) {
  Enter(0, JobOn({0, 1, 0}), {one_, {}, one_});
  ExpectBroken({"worker 1", "machine \"\"", "has host 1"});
}

TEST_F(LineupLawTest, ProcessThatKnowsItsMachineHasANumber) {
  Enter(0, JobOn({0, -1, 0}), {one_, two_, one_});
  ExpectBroken({"worker 1", "machine \"two\"", "has host -1"});
}

TEST_F(LineupLawTest, WorkerThatCannotReachAMateMayBeSplit) {
  Enter(0, JobOn({0, 1, -1}), {one_, two_, one_}, {PeerId::Worker(2)});
  ExpectKept();
}

TEST_F(LineupLawTest, SplitWorkerThatGetsItsHostBackBreaksTheLaw) {
  Enter(0, JobOn({0, 1, -1}), {one_, two_, one_}, {PeerId::Worker(2)});
  view_.job().epoch = 2;
  Enter(0, JobOn({0, 1, 0}), {one_, two_, one_}, {PeerId::Worker(2)});
  ExpectBroken({"worker 2", "host 0 in epoch 2", "split in epoch 1"});
}

TEST_F(LineupLawTest, MembersOnOtherHostsThanTheJobSaysBreakTheLaw) {
  EpochStart start;
  start.job = std::make_shared<const Job>(JobOn({0, 1, 0}));
  start.epoch_members = {{PeerId::Worker(1), 1, "", 0}};
  laws_.Tell(EpochEntered{3, &start, {two_}});
  ExpectBroken({"worker 1 is on host 1", "host 0 among", "process 3"});
}

// Disk with checkpoints of the real format. The values of a checkpoint follow
// from its round.
class CheckpointLawTest : public LawsTest {
 protected:
  CheckpointLawTest() : disk_(/*seed=*/1) {
    laws_.Add(std::make_unique<CheckpointLaw>(
        Layers(), WireType::kFloat32, OptimizerStateCount(UpdateRule::kSgd)));
  }

  TestCheckpoint OfRound(int64_t round) const {
    return {.round = round, .layers = Layers()};
  }
  void Write(int64_t round) {
    ASSERT_TRUE(WriteTestCheckpoint(disk_, OfRound(round)).ok());
    laws_.Tell(CheckpointWhole{round, &disk_});
    laws_.Tell(DiskChanged{&disk_});
  }
  // Returns the checksum of layer 0 in the checkpoint of a round.
  uint32_t SavedChecksum(int64_t round) const {
    const Buffer values = TestValues(OfRound(round), 0, 0, 64).parameters;
    return Crc32c(values.data(), static_cast<size_t>(values.bytes()));
  }

  SimulatedStorage disk_;
};

TEST_F(CheckpointLawTest, CheckpointOfWhatAWorkerHasKeepsTheLaw) {
  TellDone(0, 3, SavedChecksum(3));
  Write(3);
  TellDone(1, 3, SavedChecksum(3));
  Write(4);
  TellDone(1, 4, SavedChecksum(4));
  ExpectKept();
}

TEST_F(CheckpointLawTest, CheckpointOfAnotherRoundBreaksTheLaw) {
  TellDone(0, 3, SavedChecksum(2));
  Write(3);
  ExpectBroken({"round 3", "layer 0 fc1",
                absl::StrCat(absl::Hex(SavedChecksum(3))),
                absl::StrCat(absl::Hex(SavedChecksum(2)))});
}

TEST_F(CheckpointLawTest, WorkerThatComesToOtherValuesThanSavedBreaksTheLaw) {
  Write(3);
  ExpectKept();
  TellDone(0, 3, 0xabc);
  ExpectBroken({"round 3", "workers had abc"});
}

TEST_F(CheckpointLawTest, LostNewestCheckpointBreaksTheLaw) {
  Write(3);
  Write(4);
  ASSERT_TRUE(RemoveCheckpoint(disk_, 3).ok());
  laws_.Tell(DiskChanged{&disk_});
  ExpectKept();
  ASSERT_TRUE(RemoveCheckpoint(disk_, 4).ok());
  laws_.Tell(DiskChanged{&disk_});
  ExpectBroken({"newest checkpoint", "that of round 4 was whole"});
}

TEST_F(CheckpointLawTest, SpoiledFileBreaksTheLaw) {
  const auto manifest = WriteTestCheckpoint(disk_, OfRound(3));
  ASSERT_TRUE(manifest.ok());
  std::string& bytes = disk_.Contents(
      absl::StrCat(CheckpointFolder(3), "/", manifest->files[0].name));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  laws_.Tell(CheckpointWhole{3, &disk_});
  ExpectBroken({"round 3", "cannot be read back"});
}

TEST_F(CheckpointLawTest, FailedRestoreBreaksTheLaw) {
  view_.job().epoch = 5;
  laws_.Tell(RestoreFailed{4, 4, 2, DataLossError("gone")});
  ExpectKept();
  laws_.Tell(RestoreFailed{4, 5, 3, DataLossError("crc")});
  ExpectBroken({"round 3", "process 4", "crc"});
}

TEST_F(CheckpointLawTest, CheckpointThatHasRottedMayFailAndGo) {
  Write(3);
  Write(4);
  laws_.Tell(CheckpointRotted{4});
  laws_.Tell(RestoreFailed{4, view_.job().epoch, 4, DataLossError("crc")});
  ASSERT_TRUE(RemoveCheckpoint(disk_, 4).ok());
  laws_.Tell(DiskChanged{&disk_});
  ExpectKept();
  // The job makes it again, so it must stay.
  Write(4);
  ASSERT_TRUE(RemoveCheckpoint(disk_, 4).ok());
  laws_.Tell(DiskChanged{&disk_});
  ExpectBroken({"newest checkpoint", "that of round 4 was whole"});
}

TEST_F(CheckpointLawTest, JobThatEndsWithoutItsLastStepBreaksTheLaw) {
  laws_.Tell(JobEnded{9, 9, false});
  laws_.Tell(JobEnded{9, 8, /*may_be_unsaved=*/true});
  ExpectKept();
  laws_.Tell(JobEnded{9, 8, false});
  ExpectBroken({"after step 9", "of round 8"});
}

}  // namespace
}  // namespace nereus
