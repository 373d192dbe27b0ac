#include "common/protocol/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<EpochWorker>& Workers() {
  static const auto& workers =
      *new std::vector<EpochWorker>{{1, 0}, {4, 0}, {5, 7}};
  return workers;
}

TEST(RankListTest, HasAllRanksInOrder) {
  EXPECT_THAT(*RanksOf(Workers()), ElementsAre(1, 4, 5));
  EXPECT_THAT(*RanksOf({}), IsEmpty());
}

TEST(RankListTest, LeavesOutTheSender) {
  EXPECT_THAT(*RanksOf(Workers(), 4), ElementsAre(1, 5));
  EXPECT_THAT(*RanksOf(Workers(), 3), ElementsAre(1, 4, 5));
  EXPECT_THAT(*RanksOf(absl::MakeConstSpan(Workers()).first(1), 1), IsEmpty());
}

}  // namespace
}  // namespace nereus
