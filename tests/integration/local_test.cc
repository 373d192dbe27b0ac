// Runs `nereusctl local` as a user does: real processes, sockets and signals,
// and a job small enough for a test.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "server/admin/process.h"

namespace nereus {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

constexpr absl::Duration kLimit = absl::Minutes(2);

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  std::string name;
  char state = '?';  // 'Z': dead, and not yet waited for.
};

// Reads /proc/PID/stat: "pid (name) state parent ...".
std::optional<ProcessInfo> ReadProcess(const std::string& pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos) {
    return std::nullopt;
  }
  const std::vector<std::string> rest =
      absl::StrSplit(text.substr(close + 1), ' ', absl::SkipEmpty());
  ProcessInfo process;
  if (rest.size() < 2 || !absl::SimpleAtoi(pid, &process.pid) ||
      !absl::SimpleAtoi(rest[1], &process.parent)) {
    return std::nullopt;
  }
  process.name = text.substr(open + 1, close - open - 1);
  process.state = rest[0][0];
  return process;
}

std::vector<ProcessInfo> ChildrenOf(pid_t parent) {
  std::vector<ProcessInfo> children;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc", error)) {
    const auto process = ReadProcess(entry.path().filename().string());
    if (process.has_value() && process->parent == parent) {
      children.push_back(*process);
    }
  }
  return children;
}

bool IsGone(pid_t pid) {
  const auto process = ReadProcess(absl::StrCat(pid));
  return !process.has_value() || process->state == 'Z';
}

// Runs one nereusctl and collects what it writes.
class LocalTest : public testing::Test, public ProcessEvents {
 protected:
  void SetUp() override {
    auto group = ProcessGroup::Create(this);
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
    json_ = absl::StrCat(testing::TempDir(), "/report_", getpid(), ".json");
  }

  void OnOutputLine(int, const std::string& line) override {
    absl::StrAppend(&output_, line, "\n");
  }
  void OnErrorLine(int, const std::string& line) override {
    absl::StrAppend(&error_, line, "\n");
  }
  void OnExit(int, const ProcessExit& exit) override { exit_ = exit; }

  void Start(const std::vector<std::string>& arguments) {
    ProcessOptions options;
    options.command = {"server/admin/nereusctl", "local"};
    options.command.insert(options.command.end(), arguments.begin(),
                           arguments.end());
    options.environment = EnvironmentWithout("NEREUS_");
    const auto process = group_->Start(options);
    ASSERT_TRUE(process.ok()) << process.status();
  }

  template <typename Predicate>
  bool WaitUntil(const Predicate& done) {
    const absl::Time deadline = absl::Now() + kLimit;
    while (!done()) {
      if (absl::Now() > deadline) return false;
      if (!group_->WaitOnce(absl::Milliseconds(20)).ok()) return false;
    }
    return true;
  }

  // Runs it to the end and returns the exit code.
  int Finish() {
    EXPECT_TRUE(WaitUntil([this] { return exit_.has_value(); })) << error_;
    return exit_.value_or(ProcessExit{-1, 0}).code;
  }

  // A job that is under way and takes longer than any test, with all of its
  // processes in children_.
  void StartLongJob(int processes) {
    Start({"--workers=2", "--servers=2", "--model=mlp", "--limit=400",
           "--epochs=1000000", absl::StrCat("--json=", json_)});
    ASSERT_TRUE(WaitUntil([this] {
      return exit_.has_value() || absl::StrContains(error_, "epoch ");
    })) << error_;
    ASSERT_FALSE(exit_.has_value()) << error_;
    children_ = ChildrenOf(group_->pid(0));
    ASSERT_THAT(children_, SizeIs(processes));
  }

  pid_t FindChild(const std::string& name) {
    for (const ProcessInfo& child : children_) {
      if (child.name == name) return child.pid;
    }
    ADD_FAILURE() << "no child " << name;
    return -1;
  }

  void ExpectChildrenGone() {
    for (const ProcessInfo& child : children_) {
      EXPECT_TRUE(IsGone(child.pid)) << child.name << " " << child.pid;
    }
  }

  nlohmann::json ReadReport() {
    std::ifstream file(json_);
    return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  }

  std::unique_ptr<ProcessGroup> group_;
  std::string json_;
  std::string output_;
  std::string error_;
  std::optional<ProcessExit> exit_;
  std::vector<ProcessInfo> children_;
};

TEST_F(LocalTest, TrainsAndReports) {
  Start({"--workers=3", "--servers=2", "--model=cnn", "--limit=400",
         "--epochs=1", absl::StrCat("--json=", json_)});
  ASSERT_EQ(Finish(), 0) << error_;
  EXPECT_THAT(output_, HasSubstr("replicas       equal"));

  const nlohmann::json report = ReadReport();
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report.at("replicas_equal"), true);
  EXPECT_GT(report.at("images_per_second"), 0);
  EXPECT_GT(report.at("seconds"), 0);
  EXPECT_GE(report.at("test_accuracy"), 0);
  EXPECT_LE(report.at("test_accuracy"), 1);
  EXPECT_GT(report.at("phases").at("forward_seconds"), 0);
  EXPECT_GT(report.at("phases").at("backward_seconds"), 0);
  EXPECT_GE(report.at("phases").at("wait_seconds"), 0);
  EXPECT_EQ(report.at("settings").at("workers"), 3);
  ASSERT_EQ(report.at("workers").size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(report.at("workers").at(rank).at("rank"), rank);
  }
  ASSERT_GT(report.at("plan").at("layers").size(), 0u);
  for (const auto& layer : report.at("plan").at("layers")) {
    for (const char* name : {"name", "kind", "scheme", "elements"}) {
      EXPECT_TRUE(layer.contains(name)) << name << " in " << layer;
    }
  }
}

TEST_F(LocalTest, MovesExactlyThePredictedBytes) {
  for (const char* scheme : {"auto", "server", "factor"}) {
    SCOPED_TRACE(scheme);
    exit_.reset();
    ASSERT_NO_FATAL_FAILURE(
        Start({"--workers=3", "--servers=2", "--model=mlp", "--limit=400",
               "--epochs=1", absl::StrCat("--scheme=", scheme),
               absl::StrCat("--json=", json_)}));
    ASSERT_EQ(Finish(), 0) << error_;
    const nlohmann::json report = ReadReport();
    ASSERT_TRUE(report.is_object());
    for (const auto& node : report.at("nodes")) {
      EXPECT_EQ(node.at("bytes_measured"), node.at("bytes_predicted"));
    }
  }
}

TEST_F(LocalTest, KilledWorkerEndsTheJobWithTheReasonAndNoProcessStays) {
  ASSERT_NO_FATAL_FAILURE(StartLongJob(/*processes=*/4));
  ASSERT_EQ(kill(FindChild("nereus-worker"), SIGKILL), 0);
  EXPECT_EQ(Finish(), 1);
  EXPECT_THAT(error_, HasSubstr("was killed by signal 9 (Killed)"));
  ExpectChildrenGone();
}

TEST_F(LocalTest, KilledServerEndsTheJobWithTheReasonAndNoProcessStays) {
  ASSERT_NO_FATAL_FAILURE(StartLongJob(/*processes=*/4));
  ASSERT_EQ(kill(FindChild("nereus-server"), SIGKILL), 0);
  EXPECT_EQ(Finish(), 1);
  EXPECT_THAT(error_, HasSubstr("shard "));
  EXPECT_THAT(error_, HasSubstr("was killed by signal 9 (Killed)"));
  ExpectChildrenGone();
}

TEST_F(LocalTest, InterruptEndsTheJobAndNoProcessStays) {
  ASSERT_NO_FATAL_FAILURE(StartLongJob(/*processes=*/4));
  ASSERT_EQ(kill(group_->pid(0), SIGINT), 0);
  EXPECT_EQ(Finish(), 130);
  EXPECT_THAT(error_, HasSubstr("interrupted, all processes are stopped"));
  ExpectChildrenGone();
}

TEST_F(LocalTest, NoProcessOutlivesAKilledLauncher) {
  ASSERT_NO_FATAL_FAILURE(StartLongJob(/*processes=*/4));
  ASSERT_EQ(kill(group_->pid(0), SIGKILL), 0);
  Finish();
  EXPECT_EQ(exit_->signal, SIGKILL);
  EXPECT_TRUE(WaitUntil([this] {
    return std::all_of(children_.begin(), children_.end(),
                       [](const ProcessInfo& c) { return IsGone(c.pid); });
  }));
}

TEST_F(LocalTest, MissingFolderOfImagesIsNamed) {
  Start({"--workers=2", "--data=/nowhere/images"});
  EXPECT_EQ(Finish(), 1);
  EXPECT_THAT(error_, HasSubstr("/nowhere/images"));
}

TEST_F(LocalTest, ImpossibleOptionIsAUsageError) {
  Start({"--workers=0"});
  EXPECT_EQ(Finish(), 2);
  EXPECT_THAT(error_, HasSubstr("workers is 0"));
}

}  // namespace
}  // namespace nereus
