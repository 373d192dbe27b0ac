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
#include "absl/time/time.h"
#include "tests/testing/program_run.h"

namespace nereus {
namespace {

using testing::HasSubstr;

std::string ReadFile(const std::string& name) {
  std::ifstream file(name);
  return {std::istreambuf_iterator<char>(file),
          std::istreambuf_iterator<char>()};
}

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
    report_ = nlohmann::json::parse(File("first_run.json"), /*cb=*/nullptr,
                                    /*allow_exceptions=*/false);
    ASSERT_TRUE(report_.is_object());
    for (const auto& row : report_.at("rows")) {
      rows_[absl::StrCat(row.at("step").get<std::string>(), ": ",
                         row.at("name").get<std::string>())] = row;
    }
  }

  static std::string File(const std::string& name) {
    return ReadFile(absl::StrCat(testing::TempDir(), "/first_run/", name));
  }

  // Returns the row `name`, and expects that it has this result.
  nlohmann::json Row(const std::string& name, const std::string& result) {
    const auto found = rows_.find(name);
    if (found == rows_.end()) {
      ADD_FAILURE() << "no row " << name << "\n" << output_;
      return {};
    }
    EXPECT_EQ(found->second.at("result"), result) << found->second;
    return found->second;
  }

  std::string output_;
  nlohmann::json report_;
  std::map<std::string, nlohmann::json> rows_;  // Rows by step and name.
};

TEST_F(FirstRunEmulationTest, EachStepButSanitizersGivesValues) {
  RunScript(/*expected_code=*/0);
  EXPECT_EQ(report_.at("failed"), 0);
  EXPECT_EQ(report_.at("emulated"), true);
  // Rows that are judged.
  for (const char* name :
       {"kernels: kernel_test", "kernels: factor_test", "client: staging_test",
        "client: device_network_test", "client: gpu_client_test",
        "jobs: optimizer=server: replicas equal",
        "jobs: optimizer=server: accuracy, difference from the CPU's",
        "jobs: optimizer=worker: replicas equal",
        "jobs: 4 workers on one GPU: replicas equal",
        "experiments: two runs of one factor job: equal bits"}) {
    Row(name, "pass");
  }
  // Speeds have a value and a threshold. They are not judged here, because the
  // GPU is emulated.
  for (const char* name :
       {"ceilings: copy to the host, whole",
        "ceilings: copies both ways at once", "ceilings: pinning",
        "kernels: sgd, of a copy", "kernels: to bf16, of a copy",
        "jobs: one worker: rate against the CPU's",
        "jobs: copies out beside computing"}) {
    const nlohmann::json row = Row(name, "noted");
    if (row.is_null()) continue;
    EXPECT_TRUE(row.at("value").is_number()) << row;
    EXPECT_THAT(row.at("threshold").get<std::string>(), HasSubstr(">= "));
  }
  for (const char* model : {"resnet-50", "vgg19"}) {
    const std::string row = absl::StrCat("replay: ", model, ", 1 worker: ");
    EXPECT_GT(Row(row + "step on the CPU", "noted").at("value"), 0);
    EXPECT_GT(Row(row + "step on the GPU", "noted").at("value"), 0);
    EXPECT_EQ(Row(row + "GPU minus CPU", "noted").at("unit"), "ms");
  }
  EXPECT_THAT(Row("sanitizers: memcheck kernel_test", "skipped").at("note"),
              HasSubstr("emulated"));
  // The table has a line for each row. The log has the output of the programs.
  const std::string table = File("first_run.md");
  for (const auto& [name, row] : rows_) {
    EXPECT_THAT(table, HasSubstr(absl::StrCat(
                           "| ", row.at("step").get<std::string>(), " | ",
                           row.at("name").get<std::string>(), " | ")));
  }
  EXPECT_THAT(output_, HasSubstr(table));
  EXPECT_THAT(File("first_run.log"), HasSubstr("[  PASSED  ]"));
}

TEST_F(FirstRunEmulationTest, FailuresAreCountedAndStopNothing) {
  // There is no such folder, so all jobs that train on its images fail.
  RunScript(/*expected_code=*/1,
            {"--data=/nonexistent", "--only=jobs", "--only=experiments"});
  Row("jobs: optimizer=server", "fail");
  Row("jobs: 4 workers on one GPU", "fail");
  Row("jobs: copies out beside computing", "noted");
  Row("experiments: two runs of one factor job", "fail");
  EXPECT_GE(report_.at("failed"), 3);
}

}  // namespace
}  // namespace nereus
