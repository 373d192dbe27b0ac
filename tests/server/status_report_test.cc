#include "server/report/status_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/job_status.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

JobStatus Running(std::vector<ShardServers> shard_servers) {
  JobStatus status;
  status.job = "training";
  status.epoch = 3;
  status.state = JobState::kRunning;
  status.workers = 1;
  status.shards = 2;
  status.shard_servers = std::move(shard_servers);
  return status;
}

TEST(StatusReportTest, CurrentBackupsAreNotMentioned) {
  for (const auto& servers :
       {FirstShardServers(2, true), std::vector<ShardServers>()}) {
    EXPECT_THAT(StatusTable(Running(servers)), Not(HasSubstr("the chunks of")));
  }
}

TEST(StatusReportTest, ShowsShardsWithoutABackupAndTheirServers) {
  EXPECT_THAT(
      StatusTable(Running({{1, -1, false}, {1, 0, false}})),
      AllOf(HasSubstr("the chunks of shard 0 are served by shard 1\n"),
            HasSubstr("the chunks of shard 0 have no backup\n"),
            HasSubstr("the chunks of shard 1 have no current backup yet\n"),
            Not(HasSubstr("the chunks of shard 1 are served"))));
}

// Names come from other processes. A terminal must not carry out what they
// contain, and they must not forge lines.
TEST(StatusReportTest, TextHasNoControlCharacters) {
  const std::string evil = "x\x1b]0;title\x07\nforged\x9b";
  JobStatus status = Running({});
  status.job = status.reason = status.waiting = status.plan.schemes = evil;
  status.checkpoint.failure = status.checkpoint.damage = evil;
  status.members.resize(1);
  JobStatus::Member& member = status.members[0];
  member.name = member.data_address = member.stalled_layer = evil;
  member.stall = Stall{0, 3, evil, absl::Seconds(9)};
  status.plan.layers.resize(1);
  status.plan.layers[0].name = evil;
  status.steps.begun = 3;
  status.events = {{absl::UnixEpoch(), true, evil, LogEvent::kNone}};
  status.disk_waits = {{evil, absl::Seconds(9), evil, 3}};
  const std::string text = StatusTable(status);
  EXPECT_THAT(text, HasSubstr("forged"));
  EXPECT_THAT(text, Not(HasSubstr("\nforged")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\x9b")));
}

TEST(StatusReportTest, JsonHasPrimaryAndBackupOfEachShard) {
  const auto json = nlohmann::json::parse(
      StatusJson(Running({{1, -1, false}, {1, 0, true}})));
  EXPECT_EQ(json["shard_servers"].dump(),
            R"([{"backup":null,"backup_is_current":false,"primary":1},)"
            R"({"backup":0,"backup_is_current":true,"primary":1}])");
  EXPECT_EQ(
      nlohmann::json::parse(StatusJson(Running({})))["shard_servers"].dump(),
      "[]");
}

TEST(StatusReportTest, SaysWhyASplitWorkerIsAHostOfItsOwn) {
  JobStatus status = Running({});
  status.members.resize(1);
  status.members[0].name = "b";
  status.members[0].data_address = "10.0.0.2:7";
  EXPECT_THAT(StatusTable(status), Not(HasSubstr("a host of its own")));
  status.members[0].split = true;
  EXPECT_THAT(StatusTable(status),
              AllOf(ContainsRegex("10.0.0.2:7 +own +- "),
                    HasSubstr("worker b is a host of its own: it and another "
                              "worker of its host could not connect\n")));
  const auto json = nlohmann::json::parse(StatusJson(status));
  EXPECT_EQ(json["workers"][0]["split"], true);
}

TEST(StatusReportTest, ShowsTheHostOfEachMember) {
  JobStatus status = Running({});
  status.members.resize(2);
  status.members[0].name = "a";
  status.members[0].data_address = "10.0.0.1:7";
  status.members[0].host = 3;
  status.members[1].name = "b";
  status.members[1].data_address = "10.0.0.2:7";
  EXPECT_THAT(StatusTable(status), AllOf(ContainsRegex("address +host +behind"),
                                         ContainsRegex("10.0.0.1:7 +3 +- "),
                                         ContainsRegex("10.0.0.2:7 +- +- ")));
  const auto json = nlohmann::json::parse(StatusJson(status));
  EXPECT_EQ(json["workers"][0]["host"], 3);
  EXPECT_TRUE(json["workers"][1]["host"].is_null());
}

}  // namespace
}  // namespace nereus
