#include "worker/c_api/client_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace nereus {
namespace {

// Client without a job. Counts how often it is destroyed.
class FakeClient final : public Client {
 public:
  explicit FakeClient(std::atomic<int>* destroyed) : destroyed_(*destroyed) {}
  ~FakeClient() override { ++destroyed_; }

  absl::Status AwaitJoined(absl::Duration, Stream) override { return Done(); }
  const JobTraits& traits() const override { return traits_; }
  absl::StatusOr<StepInfo> BeginStep(absl::Duration, Stream) override {
    return StepInfo();
  }
  absl::Status Push(int, int64_t, absl::Span<float>, Stream) override {
    return Done();
  }
  absl::Status PushFactors(int, int64_t, const Factors&, absl::Span<float>,
                           Stream) override {
    return Done();
  }
  absl::Status SetFactorRows(absl::Span<const int64_t>) override {
    return Done();
  }
  absl::StatusOr<int64_t> factor_rows(int) const override { return 0; }
  absl::Status Wait(int, int64_t, absl::Duration, Stream) override {
    return Done();
  }
  absl::Status WaitForward(int, absl::Duration, Stream) override {
    return Done();
  }
  absl::Status WaitAll(int64_t, absl::Duration, Stream) override {
    return Done();
  }
  absl::StatusOr<absl::Span<const float>> Mean(int) const override {
    return absl::Span<const float>();
  }
  bool Skipped(int64_t) const override { return false; }
  absl::Status Checkpoint() override { return Done(); }
  absl::StatusOr<std::vector<std::string>> Gather(
      absl::string_view, absl::Duration) const override {
    return std::vector<std::string>();
  }
  ClientReport Report() const override { return {}; }
  absl::Status Abort(absl::string_view) override { return Done(); }

 private:
  static absl::Status Done() { return absl::OkStatus(); }
  absl::Status LeaveJob(bool, absl::Duration, Stream) override {
    return Done();
  }

  std::atomic<int>& destroyed_;
  const JobTraits traits_;
};

// Found by the thread sanitizer: the threads seldom meet.
TEST(ClientEntryTest, AClientThatSeveralThreadsCloseIsDestroyedOnce) {
  constexpr int kRuns = 200;
  std::atomic<int> destroyed = 0;
  for (int run = 0; run < kRuns; ++run) {
    ClientEntry entry(std::make_unique<FakeClient>(&destroyed));
    std::atomic<int> ready = 0;
    const auto close = [&] {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      EXPECT_TRUE(entry.Close(/*waits=*/true));
    };
    std::thread other(close);
    close();
    other.join();
    EXPECT_EQ(destroyed, run + 1);
  }
}

TEST(ClientEntryTest, AClientInUseIsClosedWhenTheCallHasEnded) {
  std::atomic<int> destroyed = 0;
  ClientEntry entry(std::make_unique<FakeClient>(&destroyed));
  ASSERT_TRUE(entry.Begin(/*needs_joined=*/false).ok());
  EXPECT_FALSE(entry.Close(/*waits=*/false));
  EXPECT_EQ(destroyed, 0);
  std::thread closer([&] { EXPECT_TRUE(entry.Close(/*waits=*/true)); });
  entry.End(absl::OkStatus());
  closer.join();
  EXPECT_EQ(destroyed, 1);
  EXPECT_EQ(entry.Begin(/*needs_joined=*/false).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nereus
