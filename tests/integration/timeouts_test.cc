// A call that timed out can be repeated and goes on. After Leave, only Leave
// may follow.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "tests/testing/local_cluster.h"
#include "worker/public/client.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Timeout of calls that cannot be done yet.
constexpr absl::Duration kShort = absl::Milliseconds(20);

ServerOptions TwoWorkers() {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = 2;
  options.spec.options.optimizer.learning_rate = 1.0f;
  options.spec.options.optimizer.momentum = 0.0f;
  return options;
}

// Worker with a layer of two values.
struct Pair {
  Pair() {
    spec.name = "pair";
    spec.m = 1;
    spec.n = 2;
    spec.parameters = 2;
    spec.rows = 1;
  }
  absl::Status Join(const ClientOptions& options) {
    client =
        NEREUS_TRY(Client::Join(options, {{spec, absl::MakeSpan(parameters)}}));
    return absl::OkStatus();
  }
  absl::Status Push(int64_t step) {
    gradient = {1.0f, 2.0f};
    return client->Push(0, step, absl::MakeSpan(gradient));
  }

  LayerSpec spec;
  std::vector<float> parameters = {0.0f, 0.0f};
  std::vector<float> gradient;
  std::unique_ptr<Client> client;
};

// Makes `call` until it does not time out.
template <typename Call>
auto Repeat(Call call) {
  while (true) {
    auto result = call();
    if (!absl::IsDeadlineExceeded(StatusOf(decltype(result)(result)))) {
      return result;
    }
  }
}

class TimeoutsTest : public testing::Test {
 protected:
  explicit TimeoutsTest(absl::Duration round_timeout = LocalCluster::kPatience)
      : cluster_(TwoWorkers()) {
    ClientOptions options = cluster_.client_options();
    options.round_timeout = round_timeout;
    for (Pair* worker : {&first_, &second_}) {
      options.name = worker == &first_ ? "first" : "second";
      EXPECT_EQ(worker->Join(options), absl::OkStatus());
      if (worker == &first_) {
        joined_alone_ = worker->client->AwaitJoined(kShort);
      }
    }
    std::thread other([this] {
      EXPECT_TRUE(second_.client->AwaitJoined(LocalCluster::kPatience).ok());
    });
    EXPECT_TRUE(
        Repeat([&] { return first_.client->AwaitJoined(kShort); }).ok());
    other.join();
  }

  // Lets the second worker do a step, its next one.
  void DoStepOfSecond(int64_t step) {
    ASSERT_TRUE(second_.client->BeginStep().ok());
    ASSERT_TRUE(second_.Push(step).ok());
    ASSERT_TRUE(second_.client->WaitAll(step).ok());
  }

  // Lets both workers do step 0, and the second one begin step 1. Leave of the
  // first waits until the second leaves or goes on.
  void HoldSecondInStep1() {
    ASSERT_TRUE(first_.client->BeginStep().ok());
    ASSERT_TRUE(first_.Push(0).ok());
    DoStepOfSecond(0);
    ASSERT_TRUE(second_.client->BeginStep().ok());
    ASSERT_TRUE(first_.client->WaitAll(0).ok());
  }

  LocalCluster cluster_;
  Pair first_;
  Pair second_;
  absl::Status joined_alone_;  // Result of a wait for the other worker.
};

TEST_F(TimeoutsTest, AwaitJoinedMayBeCalledAgainAfterATimeout) {
  EXPECT_EQ(joined_alone_.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(joined_alone_.message()),
              HasSubstr("the job waits for members"));
}

TEST_F(TimeoutsTest, ClientThatNeverJoinedIsDestroyedWithoutWaiting) {
  Pair third;
  ClientOptions options = cluster_.client_options();
  options.coordinator_address = "127.0.0.1:1";
  ASSERT_TRUE(third.Join(options).ok());
  EXPECT_EQ(third.client->AwaitJoined(kShort).code(),
            absl::StatusCode::kDeadlineExceeded);
  const absl::Time from = SteadyNow();
  third.client.reset();
  EXPECT_LT(SteadyNow() - from, absl::Seconds(20));
}

TEST_F(TimeoutsTest, WaitNamesWhatIsMissingAndGoesOnAfterATimeout) {
  const std::vector<std::function<absl::Status(int64_t step)>> waits = {
      [&](int64_t step) { return first_.client->Wait(0, step, kShort); },
      [&](int64_t) { return first_.client->WaitForward(0, kShort); },
      [&](int64_t step) { return first_.client->WaitAll(step, kShort); }};
  for (int64_t step = 0; step < std::ssize(waits); ++step) {
    SCOPED_TRACE(step);
    const auto wait = [&] { return waits[step](step); };
    ASSERT_TRUE(Repeat([&] { return first_.client->BeginStep(kShort); }).ok());
    ASSERT_TRUE(first_.Push(step).ok());
    // A driver that is busy for long does not say in time what is missing.
    absl::Status status = wait();
    while (absl::StrContains(status.message(), "driver is busy")) {
      status = wait();
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(status.message(),
              absl::StrCat("layer pair: step ", step,
                           " is not done after 20ms; missing: worker second"));
    std::thread other([&] { DoStepOfSecond(step); });
    EXPECT_TRUE(Repeat(wait).ok());
    other.join();
  }
  EXPECT_THAT(first_.parameters, ElementsAre(-3.0f, -6.0f));
}

TEST_F(TimeoutsTest, AStepThatBeganAfterATimeoutIsNotLost) {
  for (int64_t step = 0; step < 3; ++step) {
    std::thread other([&] {
      ASSERT_TRUE(second_.client->BeginStep().ok());
      ASSERT_TRUE(second_.Push(step).ok());
      ASSERT_TRUE(second_.client->WaitAll(step).ok());
    });
    // Gives up at once, so that the step begins between two calls.
    absl::StatusOr<StepInfo> begun =
        Repeat([&] { return first_.client->BeginStep(absl::ZeroDuration()); });
    ASSERT_TRUE(begun.ok()) << begun.status();
    EXPECT_EQ(begun->step, step);
    ASSERT_TRUE(first_.Push(step).ok());
    ASSERT_TRUE(first_.client->WaitAll(step).ok());
    other.join();
  }
}

TEST_F(TimeoutsTest, AWorkerThatLeavesMayOnlyGoOnLeaving) {
  HoldSecondInStep1();
  EXPECT_EQ(first_.client->Leave(absl::ZeroDuration()).code(),
            absl::StatusCode::kDeadlineExceeded);
  const absl::Status refused = first_.client->BeginStep().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is leaving"));
  std::thread other([this] { EXPECT_TRUE(second_.client->Leave().ok()); });
  EXPECT_TRUE(Repeat([&] { return first_.client->Leave(kShort); }).ok());
  other.join();
}

class ImpatientTest : public TimeoutsTest {
 protected:
  ImpatientTest() : TimeoutsTest(kRoundTimeout) {}

  // Shorter than the time between two messages of a coordinator that waits.
  static constexpr absl::Duration kRoundTimeout = absl::Seconds(1);
};

TEST_F(ImpatientTest, RepeatedLeaveGivesUpAfterTheRoundTimeout) {
  HoldSecondInStep1();
  const absl::Time from = SteadyNow();
  absl::Status left = first_.client->Leave(kShort);
  while (absl::IsDeadlineExceeded(left) &&
         SteadyNow() < from + 20 * kRoundTimeout) {
    left = first_.client->Leave(kShort);
  }
  EXPECT_EQ(left.code(), absl::StatusCode::kUnavailable) << left;
  EXPECT_THAT(std::string(left.message()), HasSubstr("silent for 1s"));
  EXPECT_EQ(first_.client->Leave(kShort).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace nereus
