// Logs of whole jobs with real processes: each line of --log-format=json is an
// object, the events of a job are there, and the last line of each process that
// fails has the cause.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/script_run.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSubsetOf;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

// Functions of the scripts: a job of two servers, the first of which
// coordinates, and two workers. Shows the logs of the job, each after the name
// of its process.
constexpr char kJob[] = R"(
export NEREUS_LOG_FORMAT=json
server() { $server "$@" --job-name=train 2> $dir/s$n.log > /dev/null & }
begin() {
  n=0; server --shard=0 --servers=2 --workers=2 --control-port=$port "$@"
  pid_s0=$!
  n=1; NEREUS_WORKERS=2 NEREUS_SERVERS=2 server --shard=1 \
    --coordinator=127.0.0.1:$port $folder
  pid_s1=$!
  for name in a b; do
    $worker --coordinator=127.0.0.1:$port --job-name=train --name=$name \
      --model=mlp --limit=200 --epochs=$epochs --delay=0.01 \
      2> $dir/w$name.log > /dev/null &
    eval pid_w$name=$!
  done
}
show() { for log in s0 s1 wa wb; do echo "log $log"; cat $dir/$log.log; done; }
)";

using Line = nlohmann::json;

class LogsTest : public ScriptRun, public testing::Test {
 protected:
  // Reads the lines of each log that `show` has shown. Each must be an object
  // with the three keys that all lines have.
  std::map<std::string, std::vector<Line>> Logs() {
    std::map<std::string, std::vector<Line>> logs;
    std::string log;
    const std::vector<std::string> lines = absl::StrSplit(output(), '\n');
    for (const std::string& text : lines) {
      if (text.starts_with("log ")) log = text.substr(4);
      if (log.empty() || text.empty() || text.starts_with("log ")) continue;
      const Line line = Line::parse(text, nullptr, false);
      EXPECT_TRUE(line.is_object()) << log << ": " << text;
      if (!line.is_object()) continue;
      EXPECT_THAT(line.value("time", ""), testing::EndsWith("Z")) << text;
      EXPECT_NE(line.value("severity", ""), "") << text;
      EXPECT_TRUE(line.contains("message")) << text;
      logs[log].push_back(line);
    }
    return logs;
  }
};

std::set<std::string> EventsOf(const std::vector<Line>& lines) {
  std::set<std::string> events;
  for (const Line& line : lines) {
    if (line.contains("event")) events.insert(line["event"]);
  }
  return events;
}

TEST_F(LogsTest, EveryLineOfAJobIsJsonAndItsEventsAreThere) {
  ASSERT_EQ(RunScript(absl::StrCat(kJob, R"(
epochs=1 folder=--checkpoint-dir=$dir/ck
begin $folder
wait $pid_wa && wait $pid_wb && wait $pid_s0 && wait $pid_s1
code=$?; show; exit $code
)")),
            0)
      << output();
  const auto logs = Logs();
  ASSERT_THAT(logs, SizeIs(4)) << output();
  for (const auto& [log, lines] : logs) {
    EXPECT_EQ(lines.front().value("event", ""), "start") << log;
    EXPECT_EQ(lines.back().value("event", ""), "end") << log;
    EXPECT_THAT(EventsOf(lines), Contains("epoch")) << log;
    for (const Line& line : lines) {
      EXPECT_EQ(line.value("job", ""), "train") << line;
      EXPECT_EQ(line.value("role", ""), log[0] == 's' ? "server" : "worker");
    }
    EXPECT_GE(lines.back().value("epoch", -1), 1) << log;
    EXPECT_TRUE(lines.back().contains("rank")) << log;
  }
  EXPECT_THAT(
      std::vector<std::string>({"start", "job_state", "member_joined", "epoch",
                                "plan", "checkpoint", "member_left", "end"}),
      IsSubsetOf(EventsOf(logs.at("s0"))));
  EXPECT_THAT(EventsOf(logs.at("wa")), Contains("member_joined"));
  EXPECT_THAT(EventsOf(logs.at("wa")), Contains("progress"));

  // The first line says where an option comes from. Variables for other
  // processes take one line together.
  const std::string first = logs.at("s1").front()["message"];
  EXPECT_THAT(first,
              AllOf(HasSubstr("nereus-server "), HasSubstr("command line: "),
                    HasSubstr("--shard=1"), HasSubstr("variables: "),
                    HasSubstr("NEREUS_LOG_FORMAT=json"),
                    HasSubstr("NEREUS_WORKERS=2")));
  int idle = 0;
  for (const Line& line : logs.at("s1")) {
    const std::string text = line["message"];
    if (text.find("not count") != std::string::npos) ++idle;
  }
  EXPECT_EQ(idle, 1) << output();
}

// Kubernetes shows the last lines of a pod: each has the coordinator's reason.
TEST_F(LogsTest, LastLineOfEachProcessOfAFailedJobHasTheCause) {
  ASSERT_EQ(RunScript(absl::StrCat(kJob, R"(
epochs=100000 folder=
begin
n=0
until grep -qs '"event":"progress"' $dir/wa.log; do
  n=$((n + 1)); [ $n -lt 600 ] || { show; exit 97; }; sleep 0.1
done
kill -KILL $pid_s1
wait $pid_wa; wait $pid_wb; wait $pid_s0
show
)")),
            0)
      << output();
  auto logs = Logs();
  logs.erase("s1");
  ASSERT_THAT(logs, SizeIs(3)) << output();
  for (const auto& [log, lines] : logs) {
    EXPECT_EQ(lines.back().value("event", ""), "end") << log;
    EXPECT_EQ(lines.back().value("severity", ""), "ERROR") << log;
    EXPECT_THAT(lines.back().value("message", ""),
                AllOf(HasSubstr("shard 1"), HasSubstr("was removed"),
                      HasSubstr("there is no checkpoint to go on from")))
        << log;
  }
  EXPECT_THAT(EventsOf(logs.at("s0")), Contains("member_lost"));
}

TEST_F(LogsTest, MistakeInTheCommandLineIsOneLine) {
  ASSERT_EQ(RunScript(R"(
echo log s0; $server --shard=0 --log-format=json --workers=many 2>&1
echo log wa; NEREUS_LOG_FORMAT=json $worker --batch=0 2>&1
exit 0
)"),
            0);
  const auto logs = Logs();
  ASSERT_THAT(logs, SizeIs(2)) << output();
  EXPECT_THAT(logs.at("s0"), SizeIs(1));
  EXPECT_THAT(logs.at("s0").back().value("message", ""),
              HasSubstr("--workers: \"many\""));
  EXPECT_THAT(logs.at("wa").back().value("message", ""), HasSubstr("--batch"));
}

TEST_F(LogsTest, LinesOfALocalJobAreJson) {
  ASSERT_EQ(RunScript(R"(
$ctl local --workers=2 --servers=1 --model=mlp --limit=200 --epochs=1 \
  --log-level=info --log-format=json 2> $dir/log > /dev/null
code=$?; echo log local; cat $dir/log; exit $code
)"),
            0)
      << output();
  const auto logs = Logs();
  ASSERT_THAT(logs, SizeIs(1)) << output();
  EXPECT_THAT(logs.at("local").front().value("message", ""),
              AllOf(StartsWith("nereusctl local "),
                    HasSubstr("; command line: --model=mlp ")));
  EXPECT_THAT(
      std::vector<std::string>({"start", "epoch", "plan", "job_state", "end"}),
      IsSubsetOf(EventsOf(logs.at("local"))));
  std::set<std::string> roles;
  for (const Line& line : logs.at("local"))
    roles.insert(line.value("role", ""));
  EXPECT_THAT(roles, ElementsAre("nereusctl", "server", "worker"));
}

TEST_F(LogsTest, ServersAndProgramsOfRunWriteJson) {
  ASSERT_EQ(RunScript(R"(
$ctl run -np 1 --log-format=json --log-level=info -- \
  $worker --model=mlp --limit=200 --epochs=1 2> $dir/log > /dev/null
code=$?; echo log run; cat $dir/log; exit $code
)"),
            0)
      << output();
  const auto logs = Logs();
  ASSERT_THAT(logs, SizeIs(1)) << output();
  EXPECT_THAT(EventsOf(logs.at("run")), Contains("progress"));
  EXPECT_THAT(EventsOf(logs.at("run")), Not(Contains("")));
}

// Runs a job of a server, which coordinates, and two workers. The logs of the
// server and of the first worker go to descriptor 7. Prints the checksums of
// the workers' parameters.
constexpr char kWatchedJob[] = R"(
job() {
  rm -f $dir/listening
  $server --shard=0 --servers=1 --workers=2 --deterministic --log-level=debug \
    > $dir/listening 2>&7 &
  pid_s=$!
  until grep -qs listening $dir/listening; do
    kill -0 $pid_s || exit 99
    sleep 0.05
  done
  control=$(sed 's/.*control=\([^ ]*\).*/\1/' $dir/listening)
  train="$worker --coordinator=$control --model=mlp --limit=200 --epochs=2 \
    --log-level=debug --json"
  $train --name=a > $dir/a 2>&7 &
  pid_a=$!
  $train --name=b > $dir/b 2> $dir/b.log
  code_b=$?
  wait $pid_a
  code_a=$?
  wait $pid_s
  echo "codes $code_a $code_b $?"
  grep -ho '"parameter_checksum":"[0-9a-f]*"' $dir/a $dir/b
}
)";

// A process that waited for the reader of its log would send nothing: the
// coordinator would answer no worker, and the other worker would wait for the
// gradients of the first.
TEST_F(LogsTest, JobNeedsNoReaderOfItsLogs) {
  ASSERT_EQ(RunScript(absl::StrCat(kWatchedJob, "job 7> $dir/log")), 0)
      << output();
  const std::string expected = output();
  EXPECT_THAT(expected, testing::MatchesRegex(
                            "codes 0 0 0\n"
                            "(\"parameter_checksum\":\"[0-9a-f]+\"\n){2}"));
  ASSERT_EQ(RunScript(absl::StrCat(kWatchedJob, R"(
mkfifo $dir/pipe
exec 7<>$dir/pipe
timeout 1 cat /dev/zero >&7  # Fills the pipe.
job
)")),
            0)
      << output();
  EXPECT_EQ(output(), expected);
}

}  // namespace
}  // namespace nereus
