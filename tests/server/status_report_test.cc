#include "server/admin/status_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/membership.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

JobStatus Running(std::vector<ShardHolders> holders) {
  JobStatus status;
  status.job = "training";
  status.epoch = 3;
  status.state = JobState::kRunning;
  status.workers = 1;
  status.shards = 2;
  status.holders = std::move(holders);
  return status;
}

TEST(StatusReportTest, WithWholeCopiesThereIsNothingToSay) {
  for (const auto& holders :
       {FirstHolders(2, true), std::vector<ShardHolders>()}) {
    EXPECT_THAT(StatusTable(Running(holders)), Not(HasSubstr("the chunks of")));
  }
}

TEST(StatusReportTest, SaysWhichShardsHaveNoCopyAndWhoServesThem) {
  EXPECT_THAT(StatusTable(Running({{1, -1, false}, {1, 0, false}})),
              AllOf(HasSubstr("the chunks of shard 0 are served by shard 1\n"),
                    HasSubstr("the chunks of shard 0 have no copy\n"),
                    HasSubstr("the chunks of shard 1 have no whole copy yet\n"),
                    Not(HasSubstr("the chunks of shard 1 are served"))));
}

TEST(StatusReportTest, JsonHasTheHoldersByShard) {
  const auto json = nlohmann::json::parse(
      StatusJson(Running({{1, -1, false}, {1, 0, true}})));
  EXPECT_EQ(json["holders"].dump(),
            R"([{"copy":null,"server":1,"whole":false},)"
            R"({"copy":0,"server":1,"whole":true}])");
  EXPECT_EQ(nlohmann::json::parse(StatusJson(Running({})))["holders"].dump(),
            "[]");
}

}  // namespace
}  // namespace nereus
