#include "server/coordinator/replica_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/protocol/replica_sample.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Makes a job with layers "scale", "fc" and "bias".
JobPtr ThreeLayers(OptimizerPlace place = OptimizerPlace::kServer) {
  JobOptions options;
  options.optimizer_place = place;
  return TestJob(3, 1,
                 {VectorLayer("scale", 4), FactorLayer("fc", 2, 3, false, 1),
                  VectorLayer("bias", 2)},
                 options);
}

// A check to which the workers of a job, "worker a" and so on, report their
// checksums.
class ReplicaCheckTest : public testing::Test {
 protected:
  // Returns kDataLoss with the reason why the job must end, if there is one.
  absl::Status Report(const std::string& worker, int64_t round,
                      std::vector<uint32_t> layers, bool is_sample = false) {
    MemberRecord member;
    member.id = PeerId::Worker(worker.back() - 'a');
    member.request.name = worker.substr(std::string("worker ").size());
    const auto reason = check_.OnChecksums(
        member, {job_->epoch, round, std::move(layers), is_sample}, *job_,
        now_);
    if (!reason.ok()) return reason.status();
    return StatusOf(*reason);
  }
  absl::Status Settle(absl::Time now) {
    return StatusOf(check_.Settle(now, *job_));
  }
  static absl::Status StatusOf(const std::optional<Announce>& reason) {
    if (!reason.has_value()) return absl::OkStatus();
    EXPECT_TRUE(reason->bad);
    EXPECT_EQ(reason->fields.event, LogEvent::kReplicas);
    EXPECT_THAT(reason->text,
                AllOf(HasSubstr(absl::StrCat("step ", reason->fields.step)),
                      HasSubstr("layer " + reason->fields.layer)));
    return DataLossError(reason->text);
  }
  void ExpectEqual(const std::string& worker, int64_t round,
                   std::vector<uint32_t> layers) {
    const absl::Status status = Report(worker, round, std::move(layers));
    EXPECT_TRUE(status.ok()) << worker << ", round " << round << ": " << status;
  }
  void ExpectDifferent(const std::string& worker, int64_t round,
                       std::vector<uint32_t> layers,
                       const std::string& message) {
    absl::Status status = Report(worker, round, std::move(layers));
    if (status.ok()) status = Settle(absl::InfiniteFuture());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

  absl::Time now_ = absl::UnixEpoch();
  JobPtr job_ = ThreeLayers();
  ReplicaCheck check_;
};

TEST_F(ReplicaCheckTest, DifferenceNamesTheLayerBothWorkersAndBothChecksums) {
  ExpectEqual("worker a", 7, {1, 0xdeadbeef, 3});
  ExpectDifferent("worker b", 7, {1, 0xab, 3},
                  "replicas differ after step 7: the parameters of layer fc "
                  "have checksum deadbeef on worker a and 000000ab on worker "
                  "b");
}

TEST_F(ReplicaCheckTest, OfSeveralLayersThatDifferTheFirstIsNamed) {
  ExpectEqual("worker a", 7, {1, 2, 3});
  EXPECT_TRUE(Report("worker b", 7, {1, 20, 30}).ok());
  const absl::Status status = Settle(absl::InfiniteFuture());
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("layer fc"), Not(HasSubstr("layer bias"))));
}

TEST_F(ReplicaCheckTest, FirstAndTheLastLayerAreComparedToo) {
  ExpectEqual("worker a", 7, {1, 2, 3});
  ExpectDifferent("worker b", 7, {0, 2, 3}, "layer scale");
  check_.Clear();
  ExpectEqual("worker a", 7, {1, 2, 3});
  ExpectDifferent("worker b", 7, {1, 2, 0}, "layer bias");
}

TEST_F(ReplicaCheckTest, WorkerThatDiffersFromTheMostIsNamed) {
  ExpectEqual("worker a", 7, {1, 2, 3});
  ExpectEqual("worker b", 7, {1, 2, 3});
  ExpectDifferent("worker c", 7, {1, 2, 4},
                  "have checksum 00000003 on worker a and worker b and "
                  "00000004 on worker c: worker c deviates from the other "
                  "workers. Does");
}

// The first report may be the wrong one.
TEST_F(ReplicaCheckTest, DifferenceWaitsForTheReportsOfOtherWorkers) {
  ExpectEqual("worker a", 7, {1, 9, 3});
  ExpectEqual("worker b", 7, {1, 2, 3});
  now_ += ReplicaCheck::kOthersWait - absl::Seconds(1);
  EXPECT_TRUE(Settle(now_).ok());
  const absl::Status status = Report("worker c", 7, {1, 2, 3});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("layer fc"),
                    HasSubstr(": worker a deviates from the other workers")));
}

TEST_F(ReplicaCheckTest, DifferenceWaitsOnlySoLong) {
  ExpectEqual("worker a", 7, {1, 9, 3});
  now_ += absl::Seconds(100);
  ExpectEqual("worker b", 7, {1, 2, 3});
  EXPECT_TRUE(Settle(now_).ok());
  now_ += ReplicaCheck::kOthersWait - absl::Milliseconds(1);
  EXPECT_TRUE(Settle(now_).ok());
  now_ += absl::Milliseconds(1);
  const absl::Status status = Settle(now_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("deviate")));
}

TEST_F(ReplicaCheckTest, AllWorkersThatDeviateAreNamedUpToFour) {
  JobOptions options;
  job_ = TestJob(9, 1, {VectorLayer("scale", 4)}, options);
  for (const char* worker : {"worker a", "worker b", "worker c", "worker d"}) {
    ExpectEqual(worker, 3, {7});
  }
  ExpectEqual("worker i", 3, {7});
  ExpectEqual("worker e", 3, {1});
  ExpectEqual("worker f", 3, {2});
  ExpectEqual("worker g", 3, {1});
  ExpectDifferent("worker h", 3, {1},
                  "have checksum 00000007 on worker a, worker b, worker c, "
                  "worker d and 1 more and 00000001 on worker e, worker g and "
                  "worker h: worker e, worker f, worker g and worker h deviate "
                  "from the other workers");
}

TEST_F(ReplicaCheckTest, WithoutAMajorityNoWorkerIsBlamed) {
  ExpectEqual("worker a", 7, {1, 2, 3});
  ExpectEqual("worker b", 7, {1, 2, 4});
  const absl::Status status = Report("worker c", 7, {1, 2, 5});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("deviate")));
}

TEST_F(ReplicaCheckTest, ReportsThatAllDifferAreFew) {
  job_ = TestJob(26, 1, {VectorLayer("scale", 4)}, JobOptions());
  for (uint32_t i = 0; i < 7; ++i) {
    ExpectEqual(std::string("worker ") + static_cast<char>('a' + i), 3, {i});
  }
  EXPECT_EQ(Report("worker h", 3, {7}).code(), absl::StatusCode::kDataLoss);
}

TEST_F(ReplicaCheckTest, SamplesAreNotComparedWithWholeLayers) {
  ExpectEqual("worker a", 7, {1, 2, 3});
  EXPECT_TRUE(Report("worker b", 7, {4, 5, 6}, /*is_sample=*/true).ok());
  EXPECT_TRUE(Settle(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(Report("worker a", 7, {4, 5, 7}, /*is_sample=*/true).ok());
  EXPECT_THAT(std::string(Settle(absl::InfiniteFuture()).message()),
              HasSubstr("after step 7: sampled parameters of layer bias"));
}

TEST_F(ReplicaCheckTest, SamplesDoNotPushOutChecksumsOfWholeLayers) {
  ExpectEqual("worker a", 0, {1, 2, 3});
  for (int64_t round = 0; round < 20; ++round) {
    EXPECT_TRUE(Report("worker a", round, {1, 2, 3}, /*is_sample=*/true).ok());
  }
  ExpectDifferent("worker b", 0, {9, 2, 3}, "replicas differ after step 0");
}

// A difference is never forgotten.
TEST_F(ReplicaCheckTest, OldDifferenceEndsTheJobWhenItsRoundIsForgotten) {
  EXPECT_TRUE(Report("worker a", 0, {1, 2, 3}, /*is_sample=*/true).ok());
  EXPECT_TRUE(Report("worker b", 0, {9, 2, 3}, /*is_sample=*/true).ok());
  for (int64_t round = 1; round < 8; ++round) {
    EXPECT_TRUE(Report("worker a", round, {1, 2, 3}, /*is_sample=*/true).ok());
  }
  EXPECT_THAT(
      std::string(
          Report("worker a", 8, {1, 2, 3}, /*is_sample=*/true).message()),
      HasSubstr("after step 0"));
}

// A sample has only some layers of a large model.
TEST_F(ReplicaCheckTest, SampleOfALargeModelNamesItsLayers) {
  std::vector<LayerSpec> layers;
  constexpr int kLayers = 2 * kSampledLayersMax + 3;
  for (int i = 0; i < kLayers; ++i) {
    layers.push_back(VectorLayer(absl::StrCat("v", i), 1));
  }
  job_ = TestJob(2, 1, layers, JobOptions());
  for (int64_t round = 0; round < 20; ++round) {
    const SampledLayers sampled = SampledLayersOf(round, kLayers);
    std::vector<uint32_t> sums(static_cast<size_t>(sampled.count), 5);
    EXPECT_EQ(Report("worker a", round, {1}, /*is_sample=*/true).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(Report("worker a", round, sums, /*is_sample=*/true).ok());
    sums.back() = 6;
    const absl::Status status =
        Report("worker b", round, sums, /*is_sample=*/true);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat(
                    "layer v", sampled.first + sampled.count - 1, " ")));
    check_.Clear();
  }
}

TEST_F(ReplicaCheckTest, ReportsOfDifferentRoundsAreNotCompared) {
  ExpectEqual("worker a", 3, {1, 2, 3});
  ExpectEqual("worker b", 7, {4, 5, 6});
  // Each worker reports the other one's round late.
  ExpectEqual("worker a", 7, {4, 5, 6});
  ExpectEqual("worker b", 3, {1, 2, 3});
  ExpectDifferent("worker c", 3, {4, 5, 6}, "replicas differ after step 3");
}

// A worker reports again in a new session.
TEST_F(ReplicaCheckTest, ReportThatComesTwicePasses) {
  ExpectEqual("worker a", 3, {1, 2, 3});
  ExpectEqual("worker a", 3, {1, 2, 3});
}

TEST_F(ReplicaCheckTest, OlderReportsAreForgottenAndNewerOnesAreNot) {
  for (int64_t round = 0; round < 9; ++round) {
    ExpectEqual("worker a", round, {1, 2, 3});
  }
  ExpectEqual("worker b", 0, {9, 2, 3});
  for (int64_t round = 1; round < 9; ++round) {
    ExpectDifferent("worker b", round, {9, 2, 3}, "replicas differ");
  }
}

TEST_F(ReplicaCheckTest, RoundsDoneAgainAreNotComparedWithEarlierReports) {
  ExpectEqual("worker a", 3, {1, 2, 3});
  check_.Clear();
  ExpectEqual("worker b", 3, {4, 5, 6});
  ExpectDifferent("worker a", 3, {1, 2, 3}, "on worker b and");
}

TEST_F(ReplicaCheckTest, ReportThatDoesNotFitTheModelIsRefusedAndNotKept) {
  const struct {
    int64_t round;
    std::vector<uint32_t> layers;
    const char* message;
  } cases[] = {
      {3, {}, "worker b reports 0 checksums as of round 3"},
      {3, {1, 2}, "worker b reports 2 checksums as of round 3"},
      {3, {1, 2, 3, 4}, "worker b reports 4 checksums as of round 3"},
      {-1, {1, 2, 3}, "3 checksums as of round -1, the model has 3 layers"},
      {kStepMax + 1, {1, 2, 3}, "as of round 70368744177665"},
  };
  for (const auto& each : cases) {
    const absl::Status status = Report("worker b", each.round, each.layers);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.message));
  }
  ExpectEqual("worker a", 3, {7, 8, 9});
  ExpectEqual("worker a", kStepMax, {7, 8, 9});
}

TEST_F(ReplicaCheckTest, LayerThatChoosesBlocksHasNoChecksum) {
  JobOptions options;
  options.sparsity.share = 0.5;
  options.sparsity.block_elements = kBlockElementsMin;
  job_ = TestJob(2, 1, {VectorLayer("large", 4096)}, options);
  ASSERT_EQ(job_->layers.size(), 2u);
  ExpectEqual("worker a", 3, {7});
  ExpectDifferent("worker b", 3, {8}, "layer large");
}

TEST_F(ReplicaCheckTest, AdviceFollowsWhereTheOptimizerRuns) {
  ExpectEqual("worker a", 3, {1, 2, 3});
  ExpectDifferent("worker b", 3, {0, 2, 3},
                  "Does a worker change parameters that the servers update?");
  job_ = ThreeLayers(OptimizerPlace::kWorker);
  ExpectDifferent("worker b", 3, {0, 2, 3},
                  "Do all workers run the same optimizer, and give its state "
                  "to those that join (LayerBinding::state)?");
}

}  // namespace
}  // namespace nereus
