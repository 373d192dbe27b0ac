#include "server/coordinator/copy_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A job on two servers: shard 0 has chunks of layers "a" and "c".
class CopyCheckTest : public testing::Test {
 protected:
  CopyCheckTest() {
    JobOptions options;
    options.backup = true;
    job_ = TestJob(
        1, 2, {VectorLayer("a", 2), VectorLayer("b", 2), VectorLayer("c", 2)},
        options);
  }

  // A report of a server on shard 0. Returns the reason why the job must end,
  // or "".
  std::string Report(int server, int64_t round, std::vector<uint32_t> sums,
                     int first_chunk = 0, uint64_t epoch = 1) {
    const auto reason =
        Take(server, round, std::move(sums), first_chunk, epoch);
    EXPECT_TRUE(reason.ok()) << reason.status();
    return reason.ok() && reason->has_value() ? (*reason)->text : "";
  }
  absl::StatusOr<std::optional<Announce>> Take(int server, int64_t round,
                                               std::vector<uint32_t> sums,
                                               int first_chunk = 0,
                                               uint64_t epoch = 1,
                                               int shard = 0) {
    MemberRecord member;
    member.id = PeerId::Shard(server);
    member.request.name = "host:1";
    member.request.data_address = "host:100";
    return check_.OnChecksums(
        member, {epoch, round, std::move(sums), false, shard, first_chunk},
        *job_);
  }

  JobPtr job_;
  CopyCheck check_;
};

TEST_F(CopyCheckTest, EqualCopiesAreRight) {
  EXPECT_EQ(Report(0, 63, {1, 2, 3, 4}), "");
  EXPECT_EQ(Report(1, 63, {1, 2, 3, 4}), "");
}

TEST_F(CopyCheckTest, DifferenceNamesLayerChunkRoundServersAndChecksums) {
  EXPECT_EQ(Report(0, 63, {1, 2, 3, 4}), "");
  EXPECT_THAT(
      Report(1, 63, {1, 2, 3, 0xab}),
      AllOf(HasSubstr("the two copies of shard 0 differ after step 63: the "
                      "optimizer state of layer c, chunk 0, have checksum "
                      "00000004 on shard 0 (host:1 at host:100) and 000000ab "
                      "on shard 1 (host:1 at host:100)"),
            HasSubstr("--restore")));
}

TEST_F(CopyCheckTest, FirstDifferentChunkIsNamed) {
  Report(1, 7, {1, 2}, /*first_chunk=*/1);
  EXPECT_THAT(Report(0, 7, {9, 9}, /*first_chunk=*/1),
              HasSubstr("the parameters of layer c, chunk 0"));
}

TEST_F(CopyCheckTest, OtherRoundsChunksAndRepetitionsAreNotCompared) {
  EXPECT_EQ(Report(0, 7, {1, 2}), "");
  EXPECT_EQ(Report(0, 7, {5, 6}), "");  // A repetition of the same server.
  EXPECT_EQ(Report(1, 8, {3, 4}), "");
  EXPECT_EQ(Report(1, 7, {3, 4}, /*first_chunk=*/1), "");
  EXPECT_EQ(Report(1, 7, {3, 4, 5, 6}), "");
}

TEST_F(CopyCheckTest, RoundsBeforeTheJobWentBackDoNotCount) {
  EXPECT_EQ(Report(0, 7, {1, 2}), "");
  check_.Clear(/*epoch=*/5);
  EXPECT_EQ(Report(0, 7, {1, 2}, 0, /*epoch=*/4), "");
  EXPECT_EQ(Report(1, 7, {3, 4}, 0, /*epoch=*/5), "");
  EXPECT_NE(Report(0, 7, {1, 2}, 0, /*epoch=*/5), "");
}

TEST_F(CopyCheckTest, OldRoundsAreForgotten) {
  for (int64_t round = 0; round < 20; ++round) {
    EXPECT_EQ(Report(0, round, {1, 2}), "");
  }
  EXPECT_EQ(Report(1, 3, {3, 4}), "");
  EXPECT_NE(Report(1, 19, {3, 4}), "");
}

TEST_F(CopyCheckTest, ReportsThatDoNotFitAreRefused) {
  const auto refused = [&](int64_t round, std::vector<uint32_t> sums, int first,
                           int shard) {
    return absl::IsInvalidArgument(
        Take(0, round, std::move(sums), first, 1, shard).status());
  };
  EXPECT_TRUE(refused(7, {1, 2}, 0, 2));
  EXPECT_TRUE(refused(7, {1, 2}, 0, -1));
  EXPECT_TRUE(refused(7, {1, 2, 3}, 0, 0));
  EXPECT_TRUE(refused(7, {1, 2}, 2, 0));
  EXPECT_TRUE(refused(7, {1, 2}, -1, 0));
  EXPECT_TRUE(refused(7, {1, 2, 3, 4, 5, 6}, 0, 0));
  EXPECT_TRUE(refused(int64_t{1} << 60, {1, 2}, 0, 0));
  MemberRecord worker;
  worker.id = PeerId::Worker(0);
  EXPECT_TRUE(absl::IsInvalidArgument(
      check_.OnChecksums(worker, {1, 7, {1, 2}, false, 0, 0}, *job_).status()));
}

}  // namespace
}  // namespace nereus
