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

struct StateCase {
  const char* name;
  JobOptions options;
  bool warns = false;  // True if the worker warns that its state is lost.
  bool lacks_state = true;
  bool has_state = true;
};

class ForgottenStateDeathTest : public testing::TestWithParam<StateCase> {};

TEST_P(ForgottenStateDeathTest, LogsAWarningWhereReplicasWouldDiffer) {
  const StateCase& c = GetParam();
  const auto warns =
      AllOf(HasSubstr("WARNING"), HasSubstr("no LayerBinding::state"),
            HasSubstr(DescribeOptimizer(c.options.optimizer)),
            HasSubstr("replicas differ"));
  const auto is_silent =
      AllOf(HasSubstr("joined job"), Not(HasSubstr("WARNING")));
  const testing::Matcher<const std::string&> says =
      c.warns ? testing::Matcher<const std::string&>(warns)
              : testing::Matcher<const std::string&>(is_silent);
  EXPECT_EXIT(LogAndExit(c.options, c.lacks_state, c.has_state),
              testing::ExitedWithCode(0), says);
}

INSTANTIATE_TEST_SUITE_P(
    All, ForgottenStateDeathTest,
    testing::Values(
        StateCase{"OfAdam",
                  OptionsWith(OptimizerPlace::kWorker, UpdateRule::kAdam, 0),
                  /*warns=*/true},
        StateCase{"OfMomentum",
                  OptionsWith(OptimizerPlace::kWorker, UpdateRule::kSgd, 0.9f),
                  /*warns=*/true},
        StateCase{"ThatIsKept",
                  OptionsWith(OptimizerPlace::kWorker, UpdateRule::kAdam, 0),
                  /*warns=*/false, /*lacks_state=*/false},
        StateCase{"ThatIsSaidNotToBe",
                  OptionsWith(OptimizerPlace::kWorker, UpdateRule::kAdam, 0),
                  /*warns=*/false, /*lacks_state=*/true, /*has_state=*/false},
        StateCase{"OfAnOptimizerWithoutAny",
                  OptionsWith(OptimizerPlace::kWorker, UpdateRule::kSgd, 0)},
        StateCase{"OfTheServers", OptionsWith(OptimizerPlace::kServer,
                                              UpdateRule::kAdam, 0.9f)}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nereus
