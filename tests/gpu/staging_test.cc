// Tests copies between a GPU and pinned memory. On an emulated GPU,
// ThreadSanitizer finds accesses that streams and events do not order.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/device/pinned_pool.h"
#include "common/device/stager.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/gate.h"
#include "tests/gpu/needs_gpu.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr absl::Duration kPatience = absl::Seconds(60);

using StagingTest = NeedsGpu<testing::Test>;

struct Stream {
  Stream() {
    NEREUS_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  ~Stream() {
    NEREUS_CUDA(cudaStreamSynchronize(stream));
    NEREUS_CUDA(cudaStreamDestroy(stream));
  }
  cudaStream_t stream = nullptr;
};

std::vector<float> Counting(int64_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::unique_ptr<Stager> MakeStager() {
  auto stager = Stager::Create(0);
  EXPECT_TRUE(stager.ok()) << stager.status();
  return *std::move(stager);
}

Buffer Take(PinnedPool& pool, int64_t count) {
  auto values = pool.Take("it", count * 4, kPatience);
  EXPECT_TRUE(values.ok()) << values.status();
  return *std::move(values);
}

Stager::Point Mark(Stager& stager, cudaStream_t stream) {
  auto point = stager.Mark("it", stream);
  EXPECT_TRUE(point.ok()) << point.status();
  return *std::move(point);
}

// Takes memory from the pool. While there is none, releases memory that copies
// to the device have read.
Buffer TakeFrom(PinnedPool& pool, Stager& stager, int64_t count) {
  while (true) {
    auto values = pool.Take("it", count * 4, absl::Milliseconds(1));
    if (values.ok()) return *std::move(values);
    stager.ReleaseRead();
  }
}

TEST_F(StagingTest, PinnedMemoryIsReused) {
  const auto pool = PinnedPool::Create(0, 4 * kMiB);
  const void* before = nullptr;
  for (int i = 0; i < 3; ++i) {
    const auto buffer = pool->Take("it", kMiB, kPatience);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(buffer->bytes(), kMiB);
    EXPECT_EQ(pool->bytes_used(), kMiB);
    if (before != nullptr) {
      EXPECT_EQ(buffer->data(), before);
    }
    before = buffer->data();
  }
  EXPECT_EQ(pool->bytes_used(), 0);
  EXPECT_EQ(pool->bytes_pinned(), kMiB);
}

TEST_F(StagingTest, NoMoreIsPinnedThanAllowed) {
  const auto pool = PinnedPool::Create(0, 4 * kMiB);
  { const auto first = pool->Take("it", 3 * kMiB, kPatience); }
  // A slightly smaller request reuses the same memory.
  EXPECT_EQ(pool->Take("it", 2 * kMiB, kPatience)->bytes(), 2 * kMiB);
  EXPECT_EQ(pool->bytes_pinned(), 3 * kMiB);
  // A much smaller request does not reuse it. To keep its limit, the pool
  // unpins memory that is not in use.
  const auto one = pool->Take("it", kMiB, kPatience);
  const auto two = pool->Take("it", kMiB, kPatience);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  EXPECT_EQ(pool->bytes_pinned(), 2 * kMiB);
  const auto third =
      pool->Take("layer fc, gradient", 3 * kMiB, absl::Milliseconds(1));
  EXPECT_EQ(third.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(third.status().message()),
              AllOf(HasSubstr("layer fc, gradient"), HasSubstr("3145728"),
                    HasSubstr("2097152 of 4194304 are in use")));
  EXPECT_EQ(pool->Take("it", 5 * kMiB, kPatience).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(pool->Take("it", 0, kPatience).ok());
}

TEST_F(StagingTest, TakeWaitsUntilMemoryIsGivenBack) {
  const auto pool = PinnedPool::Create(0, kMiB);
  auto first = std::make_unique<Buffer>(*pool->Take("it", kMiB, kPatience));
  std::thread other([&] {
    absl::SleepFor(absl::Milliseconds(2));
    first.reset();
  });
  EXPECT_TRUE(pool->Take("it", kMiB, kPatience).ok());
  other.join();
}

TEST_F(StagingTest, CopyOutWaitsForTheWorkThatComputesTheValues) {
  const auto pool = PinnedPool::Create(0, 16 * kMiB);
  const auto stager = MakeStager();
  constexpr int64_t kCount = 3 * kMiB / 4 + 5;
  const std::vector<float> zeros(kCount, 0.0f);
  const std::vector<float> made = Counting(kCount, 1.0f);
  const DeviceArray<float> gradient(zeros);
  const DeviceArray<float> source(made);
  // Pins memory before the gate, because pinning can wait for the whole GPU.
  const Buffer pinned = Take(*pool, kCount);
  Stream compute;
  Gate gate(compute.stream);
  NEREUS_CUDA(cudaMemcpyAsync(gradient.data(), source.data(), kCount * 4,
                              cudaMemcpyDeviceToDevice, compute.stream));
  const auto out =
      stager->CopyOut("it", gradient.data(), pinned,
                      Mark(*stager, compute.stream), stager->out());
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_FALSE((*out)->IsThere(1));
  gate.Open();
  const float* const values = (*out)->values().floats();
  ASSERT_TRUE((*out)->Await(kMiB).ok());
  EXPECT_EQ(std::vector<float>(values, values + kMiB / 4),
            Counting(kMiB / 4, 1.0f));
  ASSERT_TRUE((*out)->Await(kCount * 4).ok());
  EXPECT_TRUE((*out)->IsThere(kCount * 4));
  EXPECT_EQ(std::vector<float>(values, values + kCount), made);
}

TEST_F(StagingTest, RunsAreCopiedOneAfterTheOther) {
  const auto pool = PinnedPool::Create(0, kMiB);
  const auto stager = MakeStager();
  const DeviceArray<float> source(Counting(1000, 0.0f));
  for (const int64_t stride : {3, 5, 250}) {
    const auto out = stager->CopyRunsOut(
        "it", source.data() + 7, /*run_bytes=*/3 * 4, stride * 4, /*runs=*/4,
        Take(*pool, 12), Mark(*stager, stager->in()), stager->in());
    ASSERT_TRUE(out.ok()) << out.status();
    ASSERT_TRUE((*out)->Await(12 * 4).ok());
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ((*out)->values().floats()[i],
                static_cast<float>(7 + i / 3 * stride + i % 3));
    }
  }
}

TEST_F(StagingTest, CopyInIsOrderedBetweenEarlierAndLaterWork) {
  const auto pool = PinnedPool::Create(0, 16 * kMiB);
  const auto stager = MakeStager();
  constexpr int64_t kCount = kMiB;
  const std::vector<float> before = Counting(kCount, 0.0f);
  const DeviceArray<float> parameters(before);
  const DeviceArray<float> read(std::vector<float>(kCount, 0.0f));
  const DeviceArray<float> read_after(std::vector<float>(kCount, 0.0f));
  // Pins memory before the gate, because pinning can wait for the whole GPU.
  Buffer values = Take(*pool, kCount);
  Stream compute;
  Gate gate(compute.stream);
  const auto copy = [&](const DeviceArray<float>& to) {
    NEREUS_CUDA(cudaMemcpyAsync(to.data(), parameters.data(), kCount * 4,
                                cudaMemcpyDeviceToDevice, compute.stream));
  };
  copy(read);
  {
    std::iota(values.floats(), values.floats() + kCount, 7.0f);
    const auto in = stager->CopyIn("it", values, parameters.data(),
                                   Mark(*stager, compute.stream));
    ASSERT_TRUE(in.ok()) << in.status();
    ASSERT_TRUE(stager->Follow("it", compute.stream, *in).ok());
    values = Buffer();
  }
  EXPECT_EQ(pool->bytes_used(), kCount * 4);  // The copy has not begun.
  copy(read_after);
  gate.Open();
  NEREUS_CUDA(cudaStreamSynchronize(compute.stream));
  EXPECT_EQ(read.Read(), before);
  EXPECT_EQ(read_after.Read(), Counting(kCount, 7.0f));
  stager->ReleaseRead();
  EXPECT_EQ(pool->bytes_used(), 0);
}

// Makes the copies that a client makes while rounds overlap.
TEST_F(StagingTest, SeveralThreadsCopyInBothDirectionsAtOnce) {
  const auto pool = PinnedPool::Create(0, 8 * kMiB);
  const auto stager = MakeStager();
  std::vector<std::thread> layers;
  for (int layer = 0; layer < 3; ++layer) {
    layers.emplace_back([&, layer] {
      const int64_t count = 300'000 + 1000 * layer;
      const DeviceArray<float> values(Counting(count, 0.0f));
      Stream compute;
      for (int round = 0; round < 20; ++round) {
        const auto out = stager->CopyOut(
            "it", values.data(), TakeFrom(*pool, *stager, count),
            Mark(*stager, compute.stream), stager->out());
        ASSERT_TRUE(out.ok()) << out.status();
        ASSERT_TRUE((*out)->Await(count * 4).ok());
        const Buffer next = TakeFrom(*pool, *stager, count);
        for (int64_t i = 0; i < count; ++i) {
          next.floats()[i] = (*out)->values().floats()[i] + 1.0f;
        }
        const auto in = stager->CopyIn("it", next, values.data(),
                                       Mark(*stager, compute.stream));
        ASSERT_TRUE(in.ok()) << in.status();
        ASSERT_TRUE(stager->Follow("it", compute.stream, *in).ok());
      }
      NEREUS_CUDA(cudaStreamSynchronize(compute.stream));
      EXPECT_EQ(values.Read(), Counting(count, 20.0f));
    });
  }
  for (std::thread& layer : layers) layer.join();
}

TEST_F(StagingTest, EmptyCopyIsDoneAtOnce) {
  const auto stager = MakeStager();
  const auto out = stager->CopyOut("it", nullptr, Buffer(), {}, stager->out());
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_TRUE((*out)->Await(0).ok());
}

TEST_F(StagingTest, WrongPointersAreNamed) {
  const auto pool = PinnedPool::Create(0, kMiB);
  const auto stager = MakeStager();
  const std::vector<float> host(100);
  const DeviceArray<float> device(host);
  const auto copy = [&](const float* from) {
    return stager
        ->CopyOut("layer fc, gradient", from, Take(*pool, 10), {},
                  stager->out())
        .status();
  };
  EXPECT_TRUE(copy(device.data()).ok());
  EXPECT_EQ(copy(host.data()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(copy(host.data()).message()),
              AllOf(HasSubstr("layer fc, gradient"),
                    HasSubstr("is not memory of a GPU")));
  const auto* const bytes = reinterpret_cast<const char*>(device.data());
  EXPECT_THAT(
      std::string(copy(reinterpret_cast<const float*>(bytes + 2)).message()),
      HasSubstr("is not aligned to 4 bytes"));
}

}  // namespace
}  // namespace nereus
