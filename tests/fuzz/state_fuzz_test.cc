// Feeds hostile bytes to the parser of a coordinator's saved state. Runs for
// two seconds, or longer with
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/state_fuzz_test
//
// A build with --config=asan finds most. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "server/coordinator/job_state.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"
#include "tests/testing/some_state.h"

namespace nereus {
namespace {

// Runs a coordinator with `state`. Half of its members resume their sessions.
void RunWith(CoordinatorState state) {
  CoordinatorOptions options;
  options.spec.name = "training";
  options.job_id = state.epoch.job->id;
  options.spec.shards = state.epoch.job->shards();
  options.has_checkpoints = true;
  const std::vector<CoordinatorState::Member> members = state.members;
  absl::Time now = absl::UnixEpoch();
  Coordinator coordinator(options, std::move(state), now);
  CoordinatorOutbox out;
  SessionId session = 0;
  for (const CoordinatorState::Member& member : members) {
    if (session % 2 == 0) {
      coordinator.OnMessage(
          session,
          Resume{options.job_id, member.id, member.request.incarnation,
                 coordinator.job()->epoch},
          now, out);
    }
    ++session;
  }
  coordinator.OnTick(now, out);
  coordinator.Status(now);
  now += absl::Minutes(1);
  coordinator.OnTick(now, out);
  coordinator.Status(now);
}

TEST(StateFuzzTest, AcceptedStateIsWrittenBackAndRuns) {
  const google::protobuf::LogSilencer silencer;
  const std::string valid = EncodeState(SomeState());
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 20; ++i) {
      std::string bytes =
          random.Chance(0.05) ? RandomBytes(random, random.Below(64)) : valid;
      Mutate(random, bytes);
      auto state = DecodeState(bytes);
      if (!state.ok()) {
        ASSERT_EQ(state.status().code(), absl::StatusCode::kInvalidArgument);
        ASSERT_FALSE(state.status().message().empty());
        continue;
      }
      ++accepted;
      const std::string again = EncodeState(*state);
      const auto decoded = DecodeState(again);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      ASSERT_EQ(EncodeState(*decoded), again);
      if (state->epoch.job == nullptr) {
        ASSERT_NE(state->state, JobState::kRunning);
        continue;
      }
      if (state->state == JobState::kFailed && random.Chance(0.8)) {
        state->state = JobState::kRunning;
      }
      RunWith(*std::move(state));
    }
  }
  EXPECT_GT(accepted, budget.runs() / 10);
}

}  // namespace
}  // namespace nereus
