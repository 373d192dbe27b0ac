#include "common/transport/memory/frame_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// The memory of a ring and its two ends.
class FrameRingTest : public testing::Test {
 protected:
  FrameRingTest()
      : memory_(Buffer::AllocateZeroed(FrameRing::kBytes)),
        writer_(memory_.data()),
        reader_(memory_.data()) {}

  static Frame FrameOf(uint32_t layer, int64_t bytes) {
    Frame frame;
    frame.header.kind = FrameKind::kContribution;
    frame.header.layer = layer;
    frame.header.payload_bytes = static_cast<uint32_t>(bytes);
    frame.payload = Buffer::Allocate(bytes);
    std::memset(frame.payload.data(), static_cast<int>(layer % 251 + 1),
                static_cast<size_t>(bytes));
    return frame;
  }
  bool Push(const Frame& frame) {
    const auto pushed = writer_.Push(frame.header, frame.payload);
    EXPECT_TRUE(pushed.ok()) << pushed.status();
    return pushed.ok() && *pushed;
  }
  // Returns the layer of the front frame, which must be as FrameOf made it; -1
  // if the ring is empty.
  int64_t Next() {
    FrameHeader header;
    Buffer payload;
    const auto found = reader_.Front(header, payload);
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok() || !*found) return -1;
    EXPECT_EQ(payload.bytes(), header.payload_bytes);
    const auto expected = static_cast<uint8_t>(header.layer % 251 + 1);
    EXPECT_TRUE(std::all_of(payload.data(), payload.data() + payload.bytes(),
                            [&](uint8_t byte) { return byte == expected; }))
        << header.layer;
    return header.layer;
  }

  const Buffer memory_;
  FrameRingWriter writer_;
  FrameRingReader reader_;
};

TEST_F(FrameRingTest, FramesComeOutInOrderAndStayUntilPop) {
  EXPECT_TRUE(reader_.empty());
  EXPECT_EQ(Next(), -1);
  EXPECT_TRUE(Push(FrameOf(1, 100)));
  EXPECT_TRUE(Push(FrameOf(2, 0)));
  EXPECT_EQ(Next(), 1);
  EXPECT_EQ(Next(), 1);
  reader_.Pop();
  EXPECT_EQ(Next(), 2);
  EXPECT_FALSE(reader_.empty());
  reader_.Pop();
  EXPECT_TRUE(reader_.empty());
}

TEST_F(FrameRingTest, FourLargestFramesFit) {
  const Frame largest = FrameOf(1, kFramePayloadBytesMax);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(Push(largest));
    EXPECT_FALSE(Push(FrameOf(2, 0)));
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(Next(), 1);
      reader_.Pop();
    }
  }
}

TEST_F(FrameRingTest, EachFrameFitsAfterEnoughIsRead) {
  for (const uint64_t seed : TestSeeds(20)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    uint32_t pushed = 0;
    uint32_t popped = 0;
    const auto draw = [&] {
      return FrameOf(pushed, static_cast<int64_t>(
                                 random.Chance(0.3)
                                     ? random.Below(kFramePayloadBytesMax + 1)
                                     : random.Below(5000)));
    };
    Frame waiting = draw();
    while (pushed < 300) {
      if (random.Chance(0.5) && Push(waiting)) {
        ++pushed;
        waiting = draw();
      }
      if (random.Chance(0.5) && Next() >= 0) {
        EXPECT_EQ(Next(), popped++);
        reader_.Pop();
      }
    }
    for (; popped < pushed; ++popped) {
      ASSERT_EQ(Next(), popped);
      reader_.Pop();
    }
    EXPECT_TRUE(Push(waiting)) << "an empty ring has room";
    reader_.empty();
    Next();
    reader_.Pop();
  }
}

TEST_F(FrameRingTest, SleepingSideIsWokenOnceAndOnlyForWork) {
  EXPECT_FALSE(writer_.TakeSleeper());
  EXPECT_TRUE(reader_.MaySleep());
  Push(FrameOf(1, 10));
  EXPECT_TRUE(writer_.TakeSleeper());
  EXPECT_FALSE(writer_.TakeSleeper());
  EXPECT_FALSE(reader_.MaySleep());
  Push(FrameOf(2, 10));
  EXPECT_FALSE(writer_.TakeSleeper()) << "it does not sleep";

  while (Push(FrameOf(3, kFramePayloadBytesMax))) {
  }
  EXPECT_TRUE(writer_.MaySleep());
  Next();
  reader_.Pop();
  EXPECT_FALSE(reader_.TakeSleeper()) << "not room enough";
  while (Next() >= 0) reader_.Pop();
  EXPECT_TRUE(reader_.TakeSleeper());
  EXPECT_FALSE(reader_.TakeSleeper());
  EXPECT_FALSE(writer_.MaySleep()) << "there is room";
}

// Each side sleeps until the other side wakes it. If a wake-up were lost, this
// test would hang.
TEST_F(FrameRingTest, NoSideSleepsForEver) {
  constexpr uint32_t kFrames = 20000;
  std::atomic<int> reader_woken{0};
  std::atomic<int> writer_woken{0};
  const auto sleep = [](std::atomic<int>& woken) {
    while (woken.exchange(0) == 0) std::this_thread::yield();
  };
  std::thread writing([&] {
    Random random(1);
    for (uint32_t i = 0; i < kFrames;) {
      const int64_t bytes = random.Chance(0.05)
                                ? kFramePayloadBytesMax
                                : static_cast<int64_t>(random.Below(300));
      const Frame frame = FrameOf(i, bytes);
      while (!Push(frame)) {
        if (writer_.MaySleep()) sleep(writer_woken);
        writer_.Awake();
      }
      ++i;
      if (writer_.TakeSleeper()) reader_woken = 1;
    }
  });
  for (uint32_t i = 0; i < kFrames;) {
    if (Next() < 0) {
      if (reader_.MaySleep()) sleep(reader_woken);
      reader_.Awake();
      continue;
    }
    ASSERT_EQ(Next(), i++);
    reader_.Pop();
    if (reader_.TakeSleeper()) writer_woken = 1;
  }
  writing.join();
  EXPECT_TRUE(reader_.empty());
}

TEST_F(FrameRingTest, SkipWithoutAFrameBehindItIsRefused) {
  auto& control = *reinterpret_cast<FrameRing::Control*>(memory_.data());
  control.head = kFrameHeaderBytes;  // The memory is zero, and zero is a skip.
  FrameHeader header;
  Buffer payload;
  EXPECT_THAT(std::string(reader_.Front(header, payload).status().message()),
              HasSubstr("no frame follows the skipped end"));
}

}  // namespace
}  // namespace nereus
