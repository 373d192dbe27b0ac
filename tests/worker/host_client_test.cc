// Log lines of a worker that joins. Each case is a child process (EXPECT_EXIT);
// gtest compares its standard error.

#include "worker/client/host_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "common/protocol/job_options.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

JobOptions OptionsWith(OptimizerPlace place, UpdateRule rule, float momentum) {
  JobOptions options;
  options.optimizer_place = place;
  options.optimizer.rule = rule;
  options.optimizer.momentum = momentum;
  return options;
}

[[noreturn]] void LogAndExit(const JobOptions& options, bool lacks_state,
                             bool has_state = true) {
  ClientOptions client;
  client.job = "training";
  client.optimizer_has_state = has_state;
  LogJoined(client, options, lacks_state);
  std::exit(0);
}

TEST(JobNotesDeathTest, AWorkerLogsItsJobAndTheOptions) {
  EXPECT_EXIT(
      LogAndExit(OptionsWith(OptimizerPlace::kServer, UpdateRule::kSgd, 0.5f),
                 /*lacks_state=*/true),
      testing::ExitedWithCode(0),
      AllOf(HasSubstr("INFO"), HasSubstr("joined job training: "),
            HasSubstr("optimizer server, update sgd"),
            HasSubstr("momentum 0.5"), HasSubstr("nan fail")));
}

struct Optimizer {
  const char* name;
  JobOptions options;
  bool lacks_state = true;
  bool has_state = true;
};

std::string NameOf(const testing::TestParamInfo<Optimizer>& info) {
  return info.param.name;
}

class ForgottenStateDeathTest : public testing::TestWithParam<Optimizer> {};

TEST_P(ForgottenStateDeathTest, LogsAWarning) {
  EXPECT_EXIT(LogAndExit(GetParam().options, GetParam().lacks_state),
              testing::ExitedWithCode(0),
              AllOf(HasSubstr("WARNING"), HasSubstr("no LayerBinding::state"),
                    HasSubstr(DescribeOptimizer(GetParam().options.optimizer)),
                    HasSubstr("replicas differ")));
}

INSTANTIATE_TEST_SUITE_P(
    All, ForgottenStateDeathTest,
    testing::Values(Optimizer{"OfAdam", OptionsWith(OptimizerPlace::kWorker,
                                                    UpdateRule::kAdam, 0)},
                    Optimizer{"OfMomentum",
                              OptionsWith(OptimizerPlace::kWorker,
                                          UpdateRule::kSgd, 0.9f)}),
    NameOf);

class GoodStateDeathTest : public testing::TestWithParam<Optimizer> {};

TEST_P(GoodStateDeathTest, LogsNoWarning) {
  EXPECT_EXIT(LogAndExit(GetParam().options, GetParam().lacks_state,
                         GetParam().has_state),
              testing::ExitedWithCode(0),
              AllOf(HasSubstr("joined job"), Not(HasSubstr("WARNING"))));
}

INSTANTIATE_TEST_SUITE_P(
    All, GoodStateDeathTest,
    testing::Values(
        Optimizer{"ThatIsKept",
                  OptionsWith(OptimizerPlace::kWorker, UpdateRule::kAdam, 0),
                  /*lacks_state=*/false},
        Optimizer{"ThatIsSaidNotToBe",
                  OptionsWith(OptimizerPlace::kWorker, UpdateRule::kAdam, 0),
                  /*lacks_state=*/true, /*has_state=*/false},
        Optimizer{"OfAnOptimizerWithoutAny",
                  OptionsWith(OptimizerPlace::kWorker, UpdateRule::kSgd, 0)},
        Optimizer{"OfTheServers", OptionsWith(OptimizerPlace::kServer,
                                              UpdateRule::kAdam, 0.9f)}),
    NameOf);

}  // namespace
}  // namespace nereus
