#include "common/base/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log_repeats.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;
using testing::StartsWith;

// 2026-11-27T14:03:11.123Z.
const absl::Time kTime = absl::FromUnixMillis(1795788191123);

std::string Json(const LogContext& context, const LogFields& fields,
                 const std::string& text) {
  return FormatLogLine(LogFormat::kJson, context, kTime, LogLevel::kInfo,
                       fields, text);
}

TEST(LoggingTest, TextHasTheTimeInUtcTheLevelAndTheProcess) {
  LogContext shard;
  shard.role = "server";
  shard.rank = 0;
  EXPECT_EQ(FormatLogLine(LogFormat::kText, shard, kTime, LogLevel::kWarning,
                          {LogEvent::kEpoch, 3}, "epoch 2 begins"),
            "2026-11-27T14:03:11.123Z WARNING [shard 0] epoch 2 begins\n");
}

TEST(LoggingTest, LabelNamesTheProcess) {
  LogContext worker;
  EXPECT_EQ(worker.Label(), "nereus");
  worker.role = "worker";
  worker.rank = 3;
  worker.name = "w7";
  EXPECT_EQ(worker.Label(), "worker w7");
  worker.role = "coordinator";
  EXPECT_EQ(worker.Label(), "coordinator");
}

TEST(LoggingTest, JsonHasThreeKeysIfNothingElseIsKnown) {
  EXPECT_EQ(Json({}, {}, "hello"),
            "{\"time\":\"2026-11-27T14:03:11.123Z\",\"severity\":\"INFO\","
            "\"message\":\"hello\"}\n");
}

TEST(LoggingTest, JsonHasAllThatIsKnownInOrder) {
  const LogContext context = {"train", "worker", 2, "w2", 5};
  const auto json = nlohmann::ordered_json::parse(
      Json(context, {LogEvent::kStall, 12, "fc1"}, "waits"));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys,
              ElementsAre("time", "severity", "message", "job", "role", "rank",
                          "name", "epoch", "step", "layer", "event"));
  EXPECT_EQ(json["job"], "train");
  EXPECT_EQ(json["rank"], 2);
  EXPECT_EQ(json["epoch"], 5);
  EXPECT_EQ(json["step"], 12);
  EXPECT_EQ(json["layer"], "fc1");
  EXPECT_EQ(json["event"], "stall");
}

TEST(LoggingTest, EpochThatBeginsWinsOverThatOfTheProcess) {
  LogContext context;
  context.epoch = 5;
  LogFields fields = {LogEvent::kEpoch};
  fields.epoch = 6;
  EXPECT_EQ(nlohmann::json::parse(Json(context, fields, ""))["epoch"], 6);
}

TEST(LoggingTest, AnyBytesGiveOneLineOfValidJson) {
  for (const std::string& text :
       {std::string("two\nlines"), std::string("\xff\xfe bytes \xc3"),
        std::string("a \"quote\" and \\"), std::string("nul \0 byte", 10)}) {
    LogContext context;
    context.name = text;
    const std::string line = Json(context, {LogEvent::kNone, -1, text}, text);
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    const auto json = nlohmann::json::parse(line, nullptr, false);
    EXPECT_TRUE(json.is_object()) << line;
  }
  EXPECT_THAT(Json({}, {}, "\xff"), HasSubstr("\xef\xbf\xbd"));
}

// Each case is a child process (EXPECT_EXIT); gtest compares its standard
// error.

TEST(LoggingDeathTest, LinesHaveTheContextAndTheFields) {
  EXPECT_EXIT(
      {
        SetLogFormat(LogFormat::kJson);
        ChangeLogContext([](LogContext& context) { context.job = "train"; });
        ChangeLogContext([](LogContext& context) { context.epoch = 2; });
        NEREUS_LOG(Info, {LogEvent::kPlan, 7}) << "a plan";
        std::exit(0);
      },
      testing::ExitedWithCode(0),
      AllOf(StartsWith("{\"time\":\""),
            HasSubstr("\"severity\":\"INFO\",\"message\":\"a plan\","
                      "\"job\":\"train\",\"epoch\":2,\"step\":7,"
                      "\"event\":\"plan\"}\n")));
}

TEST(LoggingDeathTest, VariableChoosesTheFormatUntilTheProgramDoes) {
  EXPECT_EXIT(
      {
        setenv("NEREUS_LOG_FORMAT", "json", /*overwrite=*/1);
        NEREUS_LOG(Info) << "first";
        SetLogFormat(LogFormat::kText);
        NEREUS_LOG(Info) << "second";
        std::exit(0);
      },
      testing::ExitedWithCode(0),
      AllOf(HasSubstr("\"message\":\"first\"}\n"),
            HasSubstr("INFO [nereus] second\n")));
}

TEST(LoggingDeathTest, LinesBelowTheLevelAreDropped) {
  EXPECT_EXIT(
      {
        SetLogLevel(LogLevel::kWarning);
        NEREUS_LOG(Info) << "quiet";
        WriteLog(LogLevel::kInfo, {}, "quiet");
        WriteLog(LogLevel::kWarning, {LogEvent::kEnd}, "loud");
        std::exit(0);
      },
      testing::ExitedWithCode(0),
      AllOf(HasSubstr("WARNING [nereus] loud\n"),
            testing::Not(HasSubstr("quiet"))));
}

TEST(LoggingDeathTest, BrokenInvariantIsALineInTheFormatOfTheProcess) {
  EXPECT_DEATH(
      {
        SetLogFormat(LogFormat::kJson);
        NEREUS_CHECK(1 > 2) << "too small";
      },
      AllOf(HasSubstr("\"severity\":\"CRITICAL\""),
            HasSubstr("broken invariant: 1 > 2 too small\"")));
  EXPECT_DEATH(NEREUS_CHECK(1 > 2), HasSubstr("CRITICAL [nereus] "));
}

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(LogPaceTest, LinesComeAtGrowingIntervalsUpToAMinute) {
  LogPace pace;
  std::vector<int> due;
  for (int seconds = 0; seconds <= 300; ++seconds) {
    if (pace.IsDue(absl::Seconds(seconds))) due.push_back(seconds);
  }
  EXPECT_THAT(due, ElementsAre(0, 5, 10, 20, 40, 80, 140, 200, 260));
}

TEST(LogPaceTest, FirstLineIsDueHoweverLongItHasLasted) {
  LogPace pace;
  EXPECT_TRUE(pace.IsDue(absl::Seconds(10)));
  EXPECT_FALSE(pace.IsDue(absl::Seconds(19)));
  EXPECT_TRUE(pace.IsDue(absl::Seconds(20)));
}

TEST(LogRepeatsTest, EachTextHasItsOwnPace) {
  LogRepeats repeats;
  EXPECT_THAT(repeats.Note("a", kStart), Optional(absl::ZeroDuration()));
  EXPECT_EQ(repeats.Note("a", kStart + absl::Seconds(3)), std::nullopt);
  EXPECT_THAT(repeats.Note("b", kStart + absl::Seconds(3)),
              Optional(absl::ZeroDuration()));
  EXPECT_THAT(repeats.Note("a", kStart + absl::Seconds(6)),
              Optional(absl::Seconds(6)));
  EXPECT_EQ(repeats.Note("b", kStart + absl::Seconds(6)), std::nullopt);
}

TEST(LogRepeatsTest, TextCountsAsNewAfterTwoMinutesAndAfterClear) {
  LogRepeats repeats;
  ASSERT_TRUE(repeats.Note("a", kStart).has_value());
  const absl::Time later = kStart + absl::Seconds(121);
  EXPECT_THAT(repeats.Note("a", later), Optional(absl::ZeroDuration()));
  EXPECT_EQ(repeats.Note("a", later + absl::Seconds(1)), std::nullopt);
  repeats.Clear();
  EXPECT_THAT(repeats.Note("a", later + absl::Seconds(1)),
              Optional(absl::ZeroDuration()));
}

TEST(LogRepeatsTest, TextNotedLongestAgoIsForgottenFirst) {
  LogRepeats repeats;
  const int count = LogRepeats::kKeptMax;
  const auto time = [](int i) { return kStart + absl::Milliseconds(i); };
  for (int i = 0; i <= count; ++i) {
    ASSERT_TRUE(repeats.Note(absl::StrCat(i), time(i)).has_value());
  }
  EXPECT_EQ(repeats.Note("1", time(count + 1)), std::nullopt);
  EXPECT_THAT(repeats.Note("0", time(count + 1)),
              Optional(absl::ZeroDuration()));
}

TEST(LogRepeatsTest, LineSaysHowLongItLasts) {
  EXPECT_EQ(LastsText(absl::ZeroDuration()), "");
  EXPECT_EQ(LastsText(absl::Seconds(12.7)), " (for 12 s now)");
}

}  // namespace
}  // namespace nereus
