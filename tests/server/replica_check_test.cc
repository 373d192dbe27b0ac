#include "server/coordinator/replica_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
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

// A check to which the workers of a job report their checksums.
class ReplicaCheckTest : public testing::Test {
 protected:
  absl::Status Report(const std::string& worker, int64_t round,
                      std::vector<uint32_t> layers) {
    MemberRecord member;
    member.id = PeerId::Worker(0);
    member.request.name = worker.substr(std::string("worker ").size());
    return check_.OnChecksums(member, {job_->epoch, round, std::move(layers)},
                              *job_);
  }
  void ExpectEqual(const std::string& worker, int64_t round,
                   std::vector<uint32_t> layers) {
    const absl::Status status = Report(worker, round, std::move(layers));
    EXPECT_TRUE(status.ok()) << worker << ", round " << round << ": " << status;
  }
  void ExpectDifferent(const std::string& worker, int64_t round,
                       std::vector<uint32_t> layers,
                       const std::string& message) {
    const absl::Status status = Report(worker, round, std::move(layers));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

  JobPtr job_ = ThreeLayers();
  ReplicaCheck check_;
};

TEST_F(ReplicaCheckTest, EqualReplicasPassInEveryRound) {
  for (const int64_t round : {0, 3, 7}) {
    for (const char* worker : {"worker a", "worker b", "worker c"}) {
      ExpectEqual(worker, round, {1, 2, static_cast<uint32_t>(round)});
    }
  }
}

TEST_F(ReplicaCheckTest, DifferenceNamesTheLayerBothWorkersAndBothChecksums) {
  ExpectEqual("worker a", 7, {1, 0xdeadbeef, 3});
  ExpectDifferent("worker b", 7, {1, 0xab, 3},
                  "replicas differ after step 7: the parameters of layer fc "
                  "have checksum deadbeef on worker a and 000000ab on worker "
                  "b");
}

TEST_F(ReplicaCheckTest, OfSeveralLayersThatDifferTheFirstIsNamed) {
  ExpectEqual("worker a", 7, {1, 2, 3});
  const absl::Status status = Report("worker b", 7, {1, 20, 30});
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("layer fc"), Not(HasSubstr("layer bias"))));
}

TEST_F(ReplicaCheckTest, FirstAndTheLastLayerAreComparedToo) {
  ExpectEqual("worker a", 7, {1, 2, 3});
  ExpectDifferent("worker b", 7, {0, 2, 3}, "layer scale");
  ExpectDifferent("worker b", 7, {1, 2, 0}, "layer bias");
}

TEST_F(ReplicaCheckTest, ThirdWorkerThatDiffersIsComparedWithTheFirst) {
  ExpectEqual("worker a", 7, {1, 2, 3});
  ExpectEqual("worker b", 7, {1, 2, 3});
  ExpectDifferent("worker c", 7, {1, 2, 4},
                  "have checksum 00000003 on worker a and 00000004 on worker "
                  "c");
}

TEST_F(ReplicaCheckTest, FirstReportOfARoundCountsFromAnyWorker) {
  ExpectEqual("worker b", 7, {1, 2, 3});
  ExpectDifferent("worker a", 7, {1, 2, 4},
                  "have checksum 00000003 on worker b and 00000004 on worker "
                  "a");
}

TEST_F(ReplicaCheckTest, ReportsOfDifferentRoundsAreNotCompared) {
  ExpectEqual("worker a", 3, {1, 2, 3});
  ExpectEqual("worker b", 7, {4, 5, 6});
  // Each worker reports the other one's round late.
  ExpectEqual("worker a", 7, {4, 5, 6});
  ExpectEqual("worker b", 3, {1, 2, 3});
  ExpectDifferent("worker c", 3, {4, 5, 6}, "replicas differ after step 3");
}

TEST_F(ReplicaCheckTest, RoundThatAWorkerDoesNotReportIsNoDifference) {
  ExpectEqual("worker a", 3, {1, 2, 3});
  ExpectEqual("worker a", 5, {1, 2, 3});
  ExpectEqual("worker a", 7, {4, 5, 6});
  ExpectEqual("worker b", 7, {4, 5, 6});
}

// A worker reports again in a new session.
TEST_F(ReplicaCheckTest, ReportThatComesTwicePasses) {
  ExpectEqual("worker a", 3, {1, 2, 3});
  ExpectEqual("worker a", 3, {1, 2, 3});
}

TEST_F(ReplicaCheckTest, LateReportIsComparedWithinEightRounds) {
  for (int64_t round = 0; round < 8; ++round) {
    ExpectEqual("worker a", round, {1, 2, 3});
  }
  ExpectDifferent("worker b", 0, {9, 2, 3}, "replicas differ after step 0");
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
