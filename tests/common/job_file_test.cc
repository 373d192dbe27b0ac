// Job files, and the precedence of the command line, the environment and a job
// file. job_spec_test.cc tests the options themselves.

#include "common/flags/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/flags/flags.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(JobFileTest, FileSetsOnlyTheNamedOptions) {
  JobSpec spec;
  const auto names = ParseJobText(
      "# A job of two machines.\n"
      "\n"
      "workers = 8   # Four on each.\r\n"
      "\tupdate=adam\n"
      "learning-rate  =  0.5",
      spec);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, ElementsAre("workers", "update", "learning-rate"));
  EXPECT_EQ(spec.workers, 8);
  EXPECT_EQ(spec.options.optimizer.rule, UpdateRule::kAdam);
  EXPECT_EQ(spec.options.optimizer.learning_rate, 0.5F);
  EXPECT_EQ(spec.shards, JobSpec().shards);
}

struct BadText {
  const char* name;
  const char* text;
  const char* message;
};

class BadJobFileTest : public testing::TestWithParam<BadText> {};

TEST_P(BadJobFileTest, BadJobFileIsRefusedWithTheLine) {
  JobSpec spec;
  const absl::Status status = ParseJobText(GetParam().text, spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Lines, BadJobFileTest,
    testing::Values(
        BadText{
            "UnknownOption", "workers = 2\nlerning-rate = 0.1\n",
            "line 2: \"lerning-rate\" is not an option of a job; did you mean "
            "learning-rate?"},
        BadText{"FlagInsteadOfName", "--workers=2",
                "line 1: \"--workers\" is not an option of a job; did you mean "
                "workers?"},
        BadText{"Value", "update = sdg",
                "line 1: update: \"sdg\" is not one of sgd, adam"},
        BadText{"NoValue", "workers =",
                "line 1: workers: \"\" is not a number from 1 to 65536"},
        BadText{"NoEqualsSign", "workers 2",
                "line 1: \"workers 2\" is not NAME = VALUE"},
        BadText{"Twice", "workers = 2\nworkers = 3",
                "line 2: workers is set more than once"},
        BadText{"Binary", "\x01\x02=\xff",
                "line 1: \"\\x01\\x02\" is not an option of a job"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(JobFileTest, WrittenJobIsReadBack) {
  JobSpec spec;
  spec.name = "run#3";
  spec.workers = 3;
  spec.options.rounds.quorum = Quorum::kSolo;
  spec.options.rounds.staleness = 7;
  spec.options.optimizer.learning_rate = 0.1F / 3;
  JobSpec read;
  const auto names = ParseJobText(JobText(spec), read);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(JobText(read), JobText(spec));
  EXPECT_EQ(read.options, spec.options);
  EXPECT_EQ(read.name, "run#3");
  EXPECT_THAT(JobText(spec),
              AllOf(HasSubstr("workers = 3\n"), HasSubstr("staleness = 7\n"),
                    Not(HasSubstr("beta1"))));
}

TEST(JobFileTest, UnreadableFileIsNamed) {
  JobSpec spec;
  const absl::Status status = ReadJobFile("/nowhere/job.conf", spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/job.conf"));
}

TEST(JobFileTest, ByteOrderMarkIsNoPartOfTheFirstOption) {
  const std::string path = absl::StrCat(testing::TempDir(), "/marked.conf");
  std::ofstream(path) << "\xef\xbb\xbfworkers = 7\r\n";
  JobSpec spec;
  const auto names = ReadJobFile(path, spec);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(spec.workers, 7);
}

// Precedence.

class JobFlagsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const JobOption& option : JobOptionTable()) {
      unsetenv(FlagVariable(option.name).c_str());
    }
    unsetenv("NEREUS_JOB");
    path_ = absl::StrCat(testing::TempDir(), "/job.conf");
    std::ofstream(path_) << "workers = 2\nservers = 2\nlease = 20\n";
  }

  // Returns the job that a command line describes.
  JobSpec Parse(std::vector<std::string> arguments) {
    CLI::App app("Has a job.", "tester");
    JobFlags flags;
    AddJobFlags(app, flags);
    arguments.insert(arguments.begin(), "tester");
    std::vector<char*> pointers;
    for (std::string& text : arguments) pointers.push_back(text.data());
    code_ = ParseFlags(app, static_cast<int>(pointers.size()), pointers.data());
    return flags.spec;
  }

  std::string path_;
  int code_ = 0;
};

TEST_F(JobFlagsTest, FlagWinsOverVariableAndVariableOverFile) {
  setenv("NEREUS_SERVERS", "3", /*overwrite=*/1);
  setenv("NEREUS_LEASE", "30", /*overwrite=*/1);
  // The position of --job on the command line does not matter.
  for (const auto& arguments :
       {std::vector<std::string>{"--lease=40"},
        std::vector<std::string>{"--backup=0", "--lease=40"}}) {
    std::vector<std::string> line = arguments;
    line.push_back("--job=" + path_);
    const JobSpec spec = Parse(line);
    EXPECT_EQ(code_, -1);
    EXPECT_EQ(spec.workers, 2);         // From the file.
    EXPECT_EQ(spec.shards, 3);          // From the variable.
    EXPECT_EQ(spec.lease_seconds, 40);  // From the flag.
    EXPECT_EQ(spec.options.nan, JobSpec().options.nan);
  }
}

TEST_F(JobFlagsTest, VariableMayNameTheFile) {
  setenv("NEREUS_JOB", path_.c_str(), /*overwrite=*/1);
  EXPECT_EQ(Parse({}).workers, 2);
  EXPECT_EQ(code_, -1);
}

TEST_F(JobFlagsTest, SwitchWorksWithAndWithoutAValue) {
  EXPECT_TRUE(Parse({"--deterministic"}).options.deterministic);
  EXPECT_TRUE(Parse({"--deterministic=on"}).options.deterministic);
  EXPECT_FALSE(Parse({"--deterministic=off"}).options.deterministic);
  EXPECT_EQ(code_, -1);
}

TEST_F(JobFlagsTest, WrongFileIsAUsageError) {
  std::ofstream(path_) << "workers = many\n";
  testing::internal::CaptureStderr();
  Parse({"--job=" + path_});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr(absl::StrCat("tester: --job: ", path_,
                                     ", line 1: workers: \"many\" is not a "
                                     "number from 1 to 65536")));
  EXPECT_EQ(code_, 2);
}

}  // namespace
}  // namespace nereus
