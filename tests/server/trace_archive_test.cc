// Tests of the file of a trace, and of what `nereusctl explain` says about it.

#include "server/admin/trace_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "server/admin/commands.h"
#include "server/admin/trace_json.h"
#include "server/admin/trace_summary.h"
#include "tests/testing/some_trace.h"

namespace nereus {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string TempFile(const std::string& name) {
  return absl::StrCat(testing::TempDir(), "/", name);
}

// Runs a shell command, and returns what it prints.
std::string OutputOf(const std::string& command) {
  const std::string file = TempFile("output");
  EXPECT_EQ(std::system(absl::StrCat(command, " > ", file, " 2>&1").c_str()),
            0);
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Returns what `nereusctl explain FILE` prints.
std::string Explain(const std::string& file) {
  CLI::App app;
  const std::unique_ptr<Command> command = MakeExplainCommand();
  command->Register(app, /*with_flags=*/true);
  app.parse(std::vector<std::string>{file, "explain"});
  std::ostringstream out;
  EXPECT_EQ(command->Run(out, out), kExitDone);
  return out.str();
}

// Tests of the events of a trace, which are slices and arrows.
class TraceEventsTest : public testing::Test {
 protected:
  TraceEventsTest()
      : json_(nlohmann::json::parse(FormatTraceJson(SomeTrace()))) {}

  // Follows arrows, and the slices within a slice, from the slice `name` of a
  // process in a step. Returns the names of all slices that it reaches.
  std::set<std::string> Follow(int64_t process, const std::string& name,
                               int64_t step) const;

  const nlohmann::json json_;
};

std::set<std::string> TraceEventsTest::Follow(int64_t process,
                                              const std::string& name,
                                              int64_t step) const {
  const nlohmann::json& events = json_["traceEvents"];
  const auto is_in = [](const nlohmann::json& inner,
                        const nlohmann::json& slice) {
    const double end = slice["ts"].get<double>() + slice["dur"].get<double>();
    return inner["pid"] == slice["pid"] && inner["tid"] == slice["tid"] &&
           inner["ts"] >= slice["ts"] && inner["ts"] < end;
  };
  std::set<std::string> names;
  std::set<const nlohmann::json*> found;
  std::vector<const nlohmann::json*> queue;
  const auto reach = [&](const nlohmann::json& slice) {
    if (found.insert(&slice).second) queue.push_back(&slice);
  };
  for (const auto& event : events) {
    if (event["ph"] == "X" && event["pid"] == process &&
        event["name"] == name && event["args"]["step"] == step) {
      reach(event);
    }
  }
  while (!queue.empty()) {
    const nlohmann::json& slice = *queue.back();
    queue.pop_back();
    names.insert(absl::StrCat(slice["pid"].get<int>(), " ",
                              slice["name"].get<std::string>()));
    for (const auto& event : events) {
      if (event["ph"] == "M" || !is_in(event, slice)) continue;
      if (event["ph"] == "X") reach(event);
      if (event["ph"] != "s") continue;
      for (const auto& end : events) {
        if (end["ph"] != "f" || end["id"] != event["id"]) continue;
        for (const auto& to : events) {
          if (to["ph"] == "X" && is_in(end, to)) reach(to);
        }
      }
    }
  }
  return names;
}

TEST_F(TraceEventsTest, ArrowsLeadFromBackwardToTheWaitOfAllWorkers) {
  const std::set<std::string> reached = Follow(1, "backward fc", 10);
  for (const char* name :
       {"1 backward fc", "1 event fc", "1 send contribution fc",
        "65537 contribution fc", "65537 add fc"}) {
    EXPECT_TRUE(reached.contains(name)) << name;
  }
  // The server sends the results when it handles the last contribution.
  const std::set<std::string> last = Follow(2, "backward fc", 10);
  for (const char* name : {"65537 send result fc", "1 result fc", "1 done fc",
                           "1 wait fc", "2 result fc", "2 wait fc"}) {
    EXPECT_TRUE(last.contains(name)) << name;
  }
}

TEST_F(TraceEventsTest, ClocksAgree) {
  std::map<std::pair<int, std::string>, double> begins;
  for (const auto& event : json_["traceEvents"]) {
    if (event["ph"] != "X" || event["args"]["step"] != 10) continue;
    begins[{event["pid"].get<int>(), event["name"].get<std::string>()}] =
        event["ts"].get<double>();
  }
  EXPECT_NEAR((begins[{2, "forward"}] - begins[{1, "forward"}]), 0, 0.01);
  EXPECT_NEAR((begins[{2, "backward fc"}] - begins[{1, "backward fc"}]), 1000,
              0.01);
}

TEST(TraceArchiveTest, FileIsATarWithAManifest) {
  const std::string file = TempFile("trace.tar");
  ASSERT_TRUE(WriteTraceArchive(file, SomeTrace()).ok());
  EXPECT_EQ(OutputOf(absl::StrCat("tar tf ", file)),
            "perfetto_manifest.json\njob.json\n");
  const std::string text =
      OutputOf(absl::StrCat("tar xOf ", file, " perfetto_manifest.json"));
  EXPECT_THAT(text, testing::StartsWith("{\"perfetto_manifest\""));
  const auto manifest = nlohmann::json::parse(text)["perfetto_manifest"];
  EXPECT_EQ(manifest["version"], 1);
  EXPECT_EQ(manifest["files"],
            nlohmann::json::parse(R"([{"path": "job.json"}])"));
  // Perfetto takes only texts and integers.
  for (const auto& [name, value] : manifest["attributes"].items()) {
    EXPECT_TRUE(value.is_string() || value.is_number_integer()) << name;
  }
  EXPECT_EQ(manifest["attributes"]["nereus.worker 1.clock_offset_ns"],
            3'600'000'000'000);
}

TEST(TraceArchiveTest, ErrorOfAClockIsThatOfItsWorseComparison) {
  const std::string file = TempFile("trace.tar");
  JobTrace trace = SomeTrace();
  trace.members[0].clock = {
      {absl::UnixEpoch(), absl::Hours(1), absl::Microseconds(250)},
      {absl::UnixEpoch() + absl::Seconds(1), absl::Hours(2),
       absl::Microseconds(20)}};
  ASSERT_TRUE(WriteTraceArchive(file, trace).ok());
  const auto attributes = nlohmann::json::parse(OutputOf(absl::StrCat(
      "tar xOf ", file,
      " perfetto_manifest.json")))["perfetto_manifest"]["attributes"];
  const std::string prefix = absl::StrCat("nereus.", trace.members[0].name);
  EXPECT_EQ(attributes[prefix + ".clock_offset_ns"], 7'200'000'000'000);
  EXPECT_EQ(attributes[prefix + ".clock_error_ns"], 250'000);
}

TEST(TraceArchiveTest, FileIsReadBack) {
  const std::string file = TempFile("trace.tar");
  const JobTrace trace = SomeTrace();
  ASSERT_TRUE(WriteTraceArchive(file, trace).ok());
  const absl::StatusOr<JobTrace> read = ReadTraceArchive(file);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->job_name, "training");
  EXPECT_EQ(read->job->layers, trace.job->layers);
  EXPECT_EQ(read->last_step, 11);
  ASSERT_EQ(read->members.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const MemberTrace& expected = trace.members[i];
    EXPECT_EQ(read->members[i].clock, expected.clock);
    ASSERT_EQ(read->members[i].spans.size(), expected.spans.size());
    for (size_t j = 0; j < expected.spans.size(); ++j) {
      const Span& span = read->members[i].spans[j];
      EXPECT_EQ(span.kind, expected.spans[j].kind);
      EXPECT_EQ(span.layer, expected.spans[j].layer);
      EXPECT_EQ(span.round, expected.spans[j].round);
    }
  }
}

TEST(TraceArchiveTest, OtherFilesAreRefused) {
  EXPECT_THAT(ReadTraceArchive("/nowhere/trace.tar").status().ToString(),
              HasSubstr("/nowhere/trace.tar cannot be read: No such file"));
  const std::string file = TempFile("other");
  std::ofstream(file) << std::string(2000, 'x');
  EXPECT_THAT(ReadTraceArchive(file).status().ToString(),
              HasSubstr("is no TAR archive"));
  OutputOf(absl::StrCat("tar cf ", file, " /etc/hostname"));
  EXPECT_THAT(ReadTraceArchive(file).status().ToString(),
              HasSubstr("has no job.json"));
}

TEST(TraceSummaryTest, TimesAreMeansOfTheSteps) {
  const absl::StatusOr<TraceSummary> summary = Summarise(SomeTrace());
  ASSERT_TRUE(summary.ok()) << summary.status();
  ASSERT_EQ(summary->workers.size(), 2u);
  EXPECT_EQ(summary->workers[0].name, "worker 0");
  EXPECT_EQ(summary->workers[0].step.forward, absl::Milliseconds(4));
  EXPECT_EQ(summary->workers[0].step.backward, absl::Milliseconds(2));
  EXPECT_EQ(summary->workers[1].step.waiting, absl::Milliseconds(3));
  EXPECT_EQ(summary->step, absl::Milliseconds(9.5));
  EXPECT_EQ(summary->computing, absl::Milliseconds(6));
  EXPECT_EQ(summary->late, absl::Milliseconds(1));
  EXPECT_EQ(summary->slowest, 1);
  ASSERT_EQ(summary->layers.size(), 1u);
  EXPECT_EQ(summary->layers[0].layer, 1);
  EXPECT_EQ(summary->layers[0].waited, absl::Milliseconds(3));
  EXPECT_EQ(summary->times[1].backward, absl::Milliseconds(2));
  EXPECT_EQ(TotalTime(summary->times), absl::Milliseconds(5 + 2));
}

TEST(TraceSummaryTest, TraceWithoutStepsIsAnError) {
  JobTrace trace = SomeTrace();
  for (MemberTrace& member : trace.members) member.spans.clear();
  EXPECT_EQ(Summarise(trace).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ExplainCommandTest, NamesTheWorkerThatWaitsLongestForItsTurn) {
  JobTrace trace = SomeTrace();
  const std::string file = TempFile("trace.tar");
  ASSERT_TRUE(WriteTraceArchive(file, trace).ok());
  EXPECT_THAT(Explain(file), Not(HasSubstr("Other jobs share the devices")));
  for (MemberTrace& member : trace.members) {
    if (member.member.role != Role::kWorker) continue;
    // The worker begins each step that much later.
    const absl::Duration waits =
        absl::Milliseconds(member.member.rank == 0 ? 2 : 1);
    for (size_t i = 0; i < member.spans.size(); ++i) {
      if (member.spans[i].kind != SpanKind::kForward) continue;
      Span turn = member.spans[i];
      turn.kind = SpanKind::kTurn;
      turn.end = turn.begin + waits;
      member.spans[i].begin = turn.end;
      member.spans.insert(member.spans.begin() + i++, turn);
    }
  }
  ASSERT_TRUE(WriteTraceArchive(file, trace).ok());
  EXPECT_THAT(
      Explain(file),
      HasSubstr("\nOther jobs share the devices: worker 0 waits longest "
                "for its turn, 2.000 ms in a step.\n"));
}

}  // namespace
}  // namespace nereus
