// Frames cost no allocation in the long run, over sockets and through shared
// memory.

#include <gtest/gtest.h>

#include <memory>

#include "common/base/clock.h"
#include "tests/common/socket_peers.h"
#include "tests/common/transport_contract.h"
#include "tests/testing/allocations.h"

namespace nereus {
namespace {

constexpr int kFrames = 32;  // Number of frames under way at a time.
constexpr int64_t kFloats = int64_t{16} << 10;

// Sends each received frame back, from the memory in which it has landed.
class Returner final : public FrameHandler {
 public:
  Returner(const TransportKind& kind, PeerId self)
      : transport_(*kind.start(0)), self_(self) {
    transport_->SetRoster(TestHello(self), TestRoster());
  }

  Transport& transport() { return *transport_; }
  int64_t received() const { return received_; }
  void Poll() { transport_->Poll(absl::Milliseconds(1), *this); }
  void SendAll(PeerId to) {
    for (uint32_t layer = 0; layer < kFrames; ++layer) {
      transport_->Send(to, TestFrame(self_, layer, payload_));
    }
  }

 private:
  absl::StatusOr<Landing> OnHeader(PeerId, const FrameHeader&) override {
    return Landing::At(payload_);
  }
  void OnFrame(PeerId from, const Frame& frame) override {
    ++received_;
    transport_->Send(from, TestFrame(self_, frame.header.layer, payload_));
  }
  void OnConnected(PeerId) override {}
  void OnDisconnected(PeerId, const absl::Status& reason) override {
    ADD_FAILURE() << reason;
  }

  std::unique_ptr<Transport> transport_;
  const PeerId self_;
  const Buffer payload_ = TestPayload(0, kFloats);
  int64_t received_ = 0;
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportContractTest);

class SocketAllocationTest : public testing::TestWithParam<TransportKind> {};

TEST_P(SocketAllocationTest, FramesCostNoAllocation) {
  Returner worker(GetParam(), kWorker0);
  Returner shard(GetParam(), kShard0);
  worker.transport().Connect(
      kShard0, "127.0.0.1:" + std::to_string(shard.transport().port()),
      {SteadyNow() + kPatience});
  worker.SendAll(kShard0);
  const auto run = [&](int64_t frames) {
    const int64_t end = worker.received() + frames;
    const absl::Time deadline = SteadyNow() + kPatience;
    while (worker.received() < end && SteadyNow() < deadline) {
      worker.Poll();
      shard.Poll();
    }
    ASSERT_GE(worker.received(), end);
  };
  // First, all lists and queues grow to their final size. Some of them grow
  // late.
  int64_t allocations = 1;
  for (int i = 0; i < 20 && allocations > 0; ++i) {
    const int64_t before = Allocations();
    run(100 * kFrames);
    allocations = Allocations() - before;
  }
  EXPECT_EQ(allocations, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SocketAllocationTest,
                         testing::Values(SocketKind(), SharedMemoryKind()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace nereus
