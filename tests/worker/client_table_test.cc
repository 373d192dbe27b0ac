#include "worker/c_api/client_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "tests/worker/client_stub.h"

namespace nereus {
namespace {

// Client that counts how often it is destroyed.
class FakeClient final : public ClientStub {
 public:
  explicit FakeClient(std::atomic<int>* destroyed) : destroyed_(*destroyed) {}
  ~FakeClient() override { ++destroyed_; }

 private:
  std::atomic<int>& destroyed_;
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
