// Acceptance test: trains on the real images of MNIST. Set NEREUS_MNIST_DIR to
// the folder with its files; otherwise the test is skipped and says so.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/program_run.h"

namespace nereus {
namespace {

// Trains with `scheme` on the images in `directory`, for six epochs: after five
// and after six, the accuracy was 0.9865 with either scheme. Returns the
// report; its value is not an object if the run left none.
nlohmann::json TrainOnMnist(const std::string& directory,
                            const std::string& scheme) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/report_", scheme, ".json");
  ProgramRun run({"server/admin/nereusctl", "local", "--workers=4",
                  "--servers=2", "--epochs=6", "--data=" + directory,
                  "--scheme=" + scheme, "--cost=bytes", "--json=" + path});
  EXPECT_EQ(run.Finish(absl::Minutes(30)), 0) << run.error();
  std::ifstream file(path);
  return nlohmann::json::parse(file, /*cb=*/nullptr,
                               /*allow_exceptions=*/false);
}

void ExpectAccepted(const nlohmann::json& report) {
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report.at("settings").at("model"), "cnn");
  EXPECT_GE(report.at("test_accuracy"), 0.98);
  EXPECT_EQ(report.at("replicas_equal"), true);
  const double predicted = report.at("node_bytes_predicted");
  EXPECT_NEAR(report.at("node_bytes_measured"), predicted, 0.02 * predicted);
}

TEST(AcceptanceTest, TrainingLearnsMnistAndFactorsSaveBytes) {
  const char* directory = std::getenv("NEREUS_MNIST_DIR");
  if (directory == nullptr) {
    GTEST_SKIP() << "NEREUS_MNIST_DIR is not set: no data to train on";
  }
  const nlohmann::json by_plan = TrainOnMnist(directory, "auto");
  const nlohmann::json by_servers = TrainOnMnist(directory, "server");
  for (const nlohmann::json* report : {&by_plan, &by_servers}) {
    SCOPED_TRACE(report == &by_plan ? "auto" : "server");
    ASSERT_NO_FATAL_FAILURE(ExpectAccepted(*report));
  }
  EXPECT_LT(by_plan.at("node_bytes_measured"),
            by_servers.at("node_bytes_measured"));
}

}  // namespace
}  // namespace nereus
