#include "common/base/exit_codes.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace nereus {
namespace {

TEST(ExitCodesTest, CodeSaysWhoIsToBeStartedAgain) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), kExitDone);
  EXPECT_EQ(ExitCodeOf(OutOfRangeError("job a is finished")), kExitDone);
  EXPECT_EQ(ExitCodeOf(InternalError("?")), kExitFailed);
  EXPECT_EQ(ExitCodeOf(InvalidArgumentError("--port")), kExitUsage);
  EXPECT_EQ(ExitCodeOf(AbortedError("NaN")), kExitJobFailed);
  EXPECT_EQ(ExitCodeOf(FailedPreconditionError("model")), kExitRefused);
  EXPECT_EQ(ExitCodeOf(NotFoundError("job b")), kExitRefused);
  EXPECT_EQ(ExitCodeOf(DataLossError("shard 1")), kExitJobLost);
  for (const absl::Status& again :
       {UnavailableError("port"), AlreadyExistsError("name"),
        ResourceExhaustedError("workers"), CancelledError("dead"),
        DeadlineExceededError("late")}) {
    EXPECT_EQ(ExitCodeOf(again), kExitAgain) << again;
  }
}

}  // namespace
}  // namespace nereus
