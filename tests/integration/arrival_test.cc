// Gradients that are pushed while they are still being written.

#include "common/tensor/arrival.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "tests/testing/local_cluster.h"
#include "worker/client/host_client.h"

namespace nereus {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr int64_t kElements = 3 << 20;  // 12 MiB.
constexpr int64_t kPiece = 1 << 18;     // Elements written at a time.

// Writes a gradient on a thread, like a copy from a device.
class Writer : public Arrival {
 public:
  // Writes `value` to all elements of `gradient`. Calls `may_go_on` before the
  // second half; if that returns an error, the arrival fails with it.
  void Start(std::vector<float>& gradient, float value,
             std::function<absl::Status()> may_go_on) {
    thread_ = std::thread([this, &gradient, value, may_go_on] {
      for (int64_t start = 0; start < kElements; start += kPiece) {
        absl::Status status;
        if (start == kElements / 2) status = may_go_on();
        if (status.ok()) {
          std::fill_n(gradient.begin() + start, kPiece, value);
        }
        MutexLock lock(&mu_);
        failure_ = status;
        if (!status.ok()) return;
        there_ = (start + kPiece) * static_cast<int64_t>(sizeof(float));
      }
    });
  }
  ~Writer() override { thread_.join(); }

  bool IsThere(int64_t bytes) override {
    MutexLock lock(&mu_);
    return there_ >= bytes;
  }
  absl::Status Await(int64_t bytes) override {
    MutexLock lock(&mu_);
    mu_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return there_ >= bytes || !failure_.ok();
    });
    return failure_;
  }

 private:
  Mutex mu_;
  int64_t there_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

// Writer that names a value that is not finite before the gradient has arrived,
// as a device may do. Sets `awaited` when a thread waits for the gradient.
class UnfitWriter final : public Writer {
 public:
  explicit UnfitWriter(std::atomic<bool>& awaited) : awaited_(awaited) {}

  absl::StatusOr<BadValue> FindTooLarge() override {
    return BadValue{7, std::numeric_limits<float>::infinity()};
  }
  absl::Status Await(int64_t bytes) override {
    awaited_ = true;
    return Writer::Await(bytes);
  }

 private:
  std::atomic<bool>& awaited_;
};

int64_t BytesSent(const Client& client) {
  int64_t bytes = 0;
  for (const PeerTraffic& peer : client.Report().peers)
    bytes += peer.bytes_sent;
  return bytes;
}

struct ArrivalCase {
  std::string name;
  Scheme scheme;
  bool shared_memory;
  NanPolicy nan = NanPolicy::kFail;
};

class ArrivalTest : public testing::TestWithParam<ArrivalCase> {
 protected:
  ArrivalTest() : cluster_(Options()) {}

  static ServerOptions Options() {
    ServerOptions options = PlainServerOptions();
    options.spec.workers = 2;
    options.spec.rules.forced = GetParam().scheme;
    options.spec.options.optimizer_place = OptimizerPlace::kWorker;
    options.spec.options.nan = GetParam().nan;
    options.shared_memory = GetParam().shared_memory;
    return options;
  }

  // Runs a worker. All elements of its gradient are its rank + 1. The gradient
  // arrives while it is pushed, and `may_go_on` runs before the second half.
  absl::Status Work(
      const std::function<absl::Status(const Client&, int64_t)>& may_go_on) {
    ClientOptions options = cluster_.client_options();
    options.shared_memory = GetParam().shared_memory;
    std::vector<float> parameters(kElements);
    std::vector<float> gradient(kElements,
                                std::numeric_limits<float>::quiet_NaN());
    const LayerSpec layer = {
        "big", LayerKind::kConvolution, 1, kElements, kElements, 1};
    const auto client = NEREUS_TRY(HostClient::Connect(
        {.client = options}, {{{layer, absl::MakeSpan(parameters)}}}));
    // The kernel accepts few bytes from a new connection, so two steps warm it
    // up.
    for (int i = 0; i < 2; ++i) {
      std::vector<float> zeros(kElements);
      const StepInfo warm_up = NEREUS_TRY(client->BeginStep());
      NEREUS_TRY(client->Push(0, warm_up.step, absl::MakeSpan(zeros)));
      NEREUS_TRY(client->Wait(0, warm_up.step));
    }
    const StepInfo step = NEREUS_TRY(client->BeginStep());
    const int64_t sent = BytesSent(*client);
    const auto writer = std::make_shared<Writer>();
    writer->Start(gradient, static_cast<float>(client->traits().rank + 1),
                  [&] { return may_go_on(*client, sent); });
    NEREUS_TRY(
        client->PushArriving(0, step.step, absl::MakeSpan(gradient), writer));
    NEREUS_TRY(client->Wait(0, step.step));
    for (const float value : gradient) {
      if (value != 1.5f) return InternalError("a wrong mean");
    }
    return client->Leave();
  }

  LocalCluster cluster_;
};

TEST_P(ArrivalTest, ArrivedPartLeavesBeforeTheRestArrives) {
  const auto results = cluster_.RunWorkers(2, [&](int) {
    return Work([](const Client& client, int64_t before) -> absl::Status {
      // With votes, the worker checks the whole gradient before it sends any
      // part. On a ring, the second worker begins with the second half.
      const bool leaves =
          GetParam().nan != NanPolicy::kSkip &&
          (GetParam().scheme != Scheme::kRing || client.traits().rank == 0);
      if (!leaves) return absl::OkStatus();
      // All frames without values have fewer bytes in total.
      constexpr int64_t kBytes = 100'000;
      const absl::Time deadline = absl::Now() + LocalCluster::kPatience;
      while (BytesSent(client) < before + kBytes) {
        if (absl::Now() > deadline) return InternalError("nothing left");
        absl::SleepFor(absl::Microseconds(100));
      }
      return absl::OkStatus();
    });
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
}

TEST_P(ArrivalTest, FailedArrivalEndsTheJobWithTheReason) {
  const auto results = cluster_.RunWorkers(2, [&](int) {
    return Work([](const Client& client, int64_t) {
      return client.traits().rank == 0 ? absl::OkStatus()
                                       : DataLossError("the GPU fell off");
    });
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(std::string(result.message()), HasSubstr("the GPU fell off"));
  }
}

// Zeros replace the gradient of a skipped step. Values that arrive later would
// overwrite these zeros.
TEST(UnfitArrivalTest, SkippedGradientHasArrivedWhenPushReturns) {
  ServerOptions options = PlainServerOptions();
  options.spec.options.optimizer_place = OptimizerPlace::kWorker;
  options.spec.options.nan = NanPolicy::kSkip;
  LocalCluster cluster(options);
  std::vector<float> parameters(kElements);
  std::vector<float> gradient(kElements);
  const LayerSpec layer = {
      "big", LayerKind::kConvolution, 1, kElements, kElements, 1};
  auto client = HostClient::Connect({.client = cluster.client_options()},
                                    {{{layer, absl::MakeSpan(parameters)}}});
  ASSERT_TRUE(client.ok()) << client.status();
  const auto step = (*client)->BeginStep();
  ASSERT_TRUE(step.ok()) << step.status();
  // The second half arrives only when Push waits for it.
  std::atomic<bool> awaited{false};
  const auto writer = std::make_shared<UnfitWriter>(awaited);
  writer->Start(gradient, 1.0f, [&awaited] {
    while (!awaited) absl::SleepFor(absl::Milliseconds(1));
    return absl::OkStatus();
  });
  const absl::Status pushed =
      (*client)->PushArriving(0, step->step, absl::MakeSpan(gradient), writer);
  EXPECT_TRUE(writer->IsThere(kElements * 4));
  awaited = true;  // If Push did not wait, the writer would wait for ever.
  ASSERT_TRUE(pushed.ok()) << pushed;
  ASSERT_TRUE((*client)->Wait(0, step->step).ok());
  EXPECT_TRUE((*client)->Skipped(step->step));
  EXPECT_TRUE((*client)->Leave().ok());
}

INSTANTIATE_TEST_SUITE_P(
    All, ArrivalTest,
    testing::Values(ArrivalCase{"Servers", Scheme::kServer, false},
                    ArrivalCase{"Ring", Scheme::kRing, false},
                    ArrivalCase{"RingByMemory", Scheme::kRing, true},
                    ArrivalCase{"Direct", Scheme::kDirect, false},
                    ArrivalCase{"Votes", Scheme::kServer, false,
                                NanPolicy::kSkip}),
    [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace nereus
