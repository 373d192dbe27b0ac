// Runs tests/gpu/first_run.sh on the emulated programs. Each step that works
// without a GPU gives values, and the table and its JSON have them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/program_run.h"

namespace nereus {
namespace {

using testing::HasSubstr;

class FirstRunEmulationTest : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the programs would take longer than their timeouts";
#endif
  }

  // Runs the script, expects this exit code, and stores the rows of its report.
  void RunScript(int expected_code,
                 const std::vector<std::string>& flags = {}) {
    std::vector<std::string> command = {
        "tests/gpu/first_run.sh", "--quick", "--emulated",
        absl::StrCat("--out=", testing::TempDir(), "/first_run")};
    command.insert(command.end(), flags.begin(), flags.end());
    ProgramRun run(command);
    const int code = run.Finish();
    output_ = run.output();
    EXPECT_EQ(code, expected_code)
        << output_ << run.error() << File("first_run.log");
    const auto report = nlohmann::json::parse(
        File("first_run.json"), /*cb=*/nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(report.is_object());
    for (const auto& row : report.at("rows")) {
      rows_[absl::StrCat(row.at("step").get<std::string>(), ": ",
                         row.at("name").get<std::string>())] = row;
    }
  }

  static std::string File(const std::string& name) {
    std::ifstream file(absl::StrCat(testing::TempDir(), "/first_run/", name));
    return {std::istreambuf_iterator<char>(file),
            std::istreambuf_iterator<char>()};
  }

  // Expects that the row `name` has this result, and the table a line for it.
  void ExpectRow(const std::string& name, const std::string& result) {
    const nlohmann::json& row = rows_[name];
    ASSERT_FALSE(row.is_null()) << "no row " << name << "\n" << output_;
    EXPECT_EQ(row.at("result"), result) << row;
    EXPECT_EQ(row.at("value").is_null(), result == "fail") << row;
    const std::string line =
        absl::StrCat("| ", row.at("step").get<std::string>(), " | ",
                     row.at("name").get<std::string>(), " | ");
    EXPECT_THAT(output_, HasSubstr(line));
    EXPECT_THAT(File("first_run.md"), HasSubstr(line));
  }

  std::string output_;
  std::map<std::string, nlohmann::json> rows_;  // Rows by step and name.
};

TEST_F(FirstRunEmulationTest, EachStepButSanitizersGivesValues) {
  RunScript(/*expected_code=*/0);
  // Rows that are judged.
  for (const char* name :
       {"kernels: kernel_test", "kernels: factor_test", "client: staging_test",
        "client: device_network_test", "client: gpu_client_test",
        "jobs: optimizer=server: replicas equal",
        "jobs: optimizer=server: accuracy, difference from the CPU's",
        "jobs: optimizer=worker: replicas equal",
        "jobs: 4 workers on one GPU: replicas equal",
        "jobs: two runs of one factor job: equal bits"}) {
    ExpectRow(name, "pass");
  }
  // Speeds are not judged, because the GPU is emulated.
  for (const char* name :
       {"ceilings: copy to the host, whole",
        "ceilings: copies both ways at once", "ceilings: pinning",
        "kernels: sgd, of a copy", "kernels: to bf16, of a copy",
        "jobs: one worker: rate against the CPU's",
        "jobs: copies out beside computing",
        "replay: resnet-50, 1 worker: GPU minus CPU",
        "replay: vgg19, 1 worker: GPU minus CPU"}) {
    ExpectRow(name, "noted");
    EXPECT_NE(rows_[name]["threshold"], "") << name;
  }
  EXPECT_EQ(rows_["sanitizers: memcheck kernel_test"]["note"],
            "compute-sanitizer needs a GPU, and this one is emulated");
  EXPECT_THAT(File("first_run.log"), HasSubstr("[  PASSED  ]"));
}

TEST_F(FirstRunEmulationTest, FailuresAreCountedAndStopNothing) {
  // There is no such folder, so all jobs that train on its images fail.
  RunScript(/*expected_code=*/1, {"--data=/nonexistent", "--only=jobs"});
  ExpectRow("jobs: optimizer=server", "fail");
  ExpectRow("jobs: 4 workers on one GPU", "fail");
  ExpectRow("jobs: two runs of one factor job", "fail");
  ExpectRow("jobs: copies out beside computing", "noted");
}

}  // namespace
}  // namespace nereus
