// Tests steps that are skipped, in a job with backups.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/server/shard_pair.h"

namespace nereus {
namespace {

using testing::ElementsAre;

struct ShardSkipTest : testing::Test {
  static JobOptions Skipping() {
    JobOptions options = PlainSgd();
    options.nan = NanPolicy::kSkip;
    return options;
  }
  // All workers contribute to both layers.
  void Contribute(int64_t round) {
    for (const int layer : {0, 2}) {
      for (const int worker : {0, 1}) {
        pair.Contribute(worker, layer, round, {1, 2});
      }
    }
  }

  ShardPair pair{Skipping()};
};

TEST_F(ShardSkipTest, BackupSkipsWhatThePrimarySkips) {
  pair.Begin({10, 20});
  Contribute(0);
  pair.Decide({0, /*skipped=*/true});
  pair.Arrive();
  EXPECT_THAT(pair.parameters(1), ElementsAre(10, 20));
  pair.ExpectEqual();
  Contribute(1);
  pair.Decide({1, /*skipped=*/false});
  pair.Arrive();
  EXPECT_THAT(pair.parameters(1), ElementsAre(9, 18));
  pair.ExpectEqual();
}

// A primary that was about to skip a round becomes the backup. The round that
// it then takes from the new primary is not skipped.
TEST_F(ShardSkipTest, FormerPrimaryForgetsThatItsRoundWasSkipped) {
  pair.Begin({10, 20});
  Contribute(0);
  pair.Decide({0, /*skipped=*/true});
  pair.Arrive(2);  // The verdict, of each layer. The answers are lost.
  ASSERT_EQ(pair.at(0).closed_round(), kInitialRound);
  ASSERT_EQ(pair.at(1).closed_round(), 0);
  pair.Enter(Holders(1, 0, true), [](Job& job) {
    job.history.verdicts = {{0, /*skipped=*/true}};
  });
  pair.Arrive();
  pair.ExpectEqual();
  Contribute(1);
  pair.Decide({1, /*skipped=*/false});
  pair.Arrive();
  EXPECT_THAT(pair.parameters(1), ElementsAre(9, 18));
  pair.ExpectEqual();
}

}  // namespace
}  // namespace nereus
