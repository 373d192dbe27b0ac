#include "common/tensor/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace nereus {
namespace {

TEST(BufferTest, DefaultHasNoBytes) {
  const Buffer buffer;
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 0);
  EXPECT_EQ(buffer.float_count(), 0);
  EXPECT_FALSE(buffer.unique());
}

TEST(BufferTest, OwnedMemoryOfEachSizeIsAligned) {
  for (const int64_t bytes : {0, 1, 4, 63, 64, 65, 100000}) {
    const Buffer buffer = Buffer::Allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u) << bytes;
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_TRUE(buffer.unique());
  }
}

TEST(BufferTest, ZeroedMemoryIsZero) {
  // The allocator is likely to return the same memory again, full of 0xff.
  { std::memset(Buffer::Allocate(4099).data(), 0xff, 4099); }
  const Buffer buffer = Buffer::AllocateZeroed(4099);
  for (int64_t i = 0; i < buffer.bytes(); ++i) ASSERT_EQ(buffer.data()[i], 0);
}

TEST(BufferTest, FloatCountRoundsDown) {
  EXPECT_EQ(Buffer::Allocate(7).float_count(), 1);
  EXPECT_EQ(Buffer::Allocate(8).float_count(), 2);
}

TEST(BufferTest, CopiesShareTheBytesAndTheCount) {
  Buffer first = Buffer::Allocate(8);
  EXPECT_TRUE(first.unique());
  {
    const Buffer second = first;
    EXPECT_EQ(second.data(), first.data());
    EXPECT_FALSE(first.unique());
    EXPECT_FALSE(second.unique());
  }
  EXPECT_TRUE(first.unique());
}

TEST(BufferTest, MovingTransfersTheReference) {
  Buffer first = Buffer::Allocate(8);
  uint8_t* const data = first.data();
  const Buffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.bytes(), 8);
  EXPECT_TRUE(second.unique());
  EXPECT_EQ(first.data(), nullptr);  // NOLINT: moved from, so empty.
  EXPECT_EQ(first.bytes(), 0);
}

TEST(BufferTest, AssignmentDropsTheOldReferenceButSelfAssignmentKeepsIt) {
  int released = 0;
  float value = 0;
  Buffer buffer = Buffer::Borrow(&value, 4, [&] { ++released; });
  const Buffer& same = buffer;
  buffer = same;
  EXPECT_EQ(released, 0);
  EXPECT_TRUE(buffer.unique());
  buffer = Buffer();
  EXPECT_EQ(released, 1);
}

TEST(BufferTest, SliceIsPartOfTheSameMemoryAndKeepsItAlive) {
  Buffer whole = Buffer::AllocateZeroed(16);
  uint8_t* const data = whole.data();
  Buffer slice = whole.Slice(4, 8);
  EXPECT_EQ(slice.data(), data + 4);
  EXPECT_EQ(slice.bytes(), 8);
  EXPECT_EQ(slice.Slice(2, 3).data(), data + 6);
  EXPECT_FALSE(whole.unique());
  whole = Buffer();
  EXPECT_TRUE(slice.unique());
  slice.data()[7] = 1;
  EXPECT_EQ(slice.data()[7], 1);
}

TEST(BufferTest, EmptySlicesAreAllowedAtBothEnds) {
  const Buffer buffer = Buffer::Allocate(16);
  EXPECT_EQ(buffer.Slice(0, 0).bytes(), 0);
  EXPECT_EQ(buffer.Slice(16, 0).bytes(), 0);
  EXPECT_EQ(buffer.Slice(0, 16).bytes(), 16);
  EXPECT_EQ(Buffer().Slice(0, 0).bytes(), 0);
}

TEST(BufferDeathTest, SliceBeyondTheEndEndsTheProcess) {
  const Buffer buffer = Buffer::Allocate(16);
  EXPECT_DEATH(buffer.Slice(0, 17), "of 16 bytes");
  EXPECT_DEATH(buffer.Slice(17, 0), "of 16 bytes");
  EXPECT_DEATH(buffer.Slice(-1, 4), "of 16 bytes");
  EXPECT_DEATH(buffer.Slice(4, -1), "of 16 bytes");
  EXPECT_DEATH(buffer.Slice(INT64_MAX, 16), "of 16 bytes");
  EXPECT_DEATH(Buffer::Allocate(-1), "-1");
}

TEST(BufferTest, BorrowedMemoryIsReleasedOnceByTheLastReference) {
  int released = 0;
  float values[4] = {};
  {
    Buffer slice;
    {
      const Buffer borrowed =
          Buffer::Borrow(values, sizeof(values), [&] { ++released; });
      EXPECT_EQ(borrowed.floats(), values);
      EXPECT_TRUE(borrowed.unique());
      slice = borrowed.Slice(8, 4);
      const Buffer copy = borrowed;
    }
    EXPECT_EQ(released, 0);
    const Buffer moved = std::move(slice);
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

TEST(BufferTest, ViewsAreNotCounted) {
  float values[4] = {};
  const Buffer view = Buffer::View(values, sizeof(values));
  EXPECT_EQ(view.floats(), values);
  EXPECT_FALSE(view.unique());
  EXPECT_EQ(view.Slice(4, 4).floats(), values + 1);
  EXPECT_FALSE(view.Slice(4, 4).unique());
}

TEST(BufferTest, SizeOnlyHasSizesButNoBytes) {
  const Buffer size = Buffer::SizeOnly(int64_t{1} << 40);
  EXPECT_EQ(size.data(), nullptr);
  EXPECT_EQ(size.bytes(), int64_t{1} << 40);
  EXPECT_FALSE(size.unique());
  EXPECT_EQ(size.Slice(100, 24).data(), nullptr);
  EXPECT_EQ(size.Slice(100, 24).bytes(), 24);
}

TEST(BufferTest, MemoryLikeAModelHasBytesIfTheModelHas) {
  const Buffer size = Buffer::AllocateLike(Buffer::SizeOnly(4), 4099);
  EXPECT_EQ(size.data(), nullptr);
  EXPECT_EQ(size.bytes(), 4099);
  const Buffer model = Buffer::Allocate(4);
  const Buffer memory = Buffer::AllocateLike(model, 4099);
  EXPECT_EQ(memory.bytes(), 4099);
  EXPECT_TRUE(memory.unique());
  EXPECT_TRUE(model.unique());  // AllocateLike keeps no reference.
  for (int64_t i = 0; i < memory.bytes(); ++i) ASSERT_EQ(memory.data()[i], 0);
}

// Threads copy and drop references at once. The last holder releases the memory
// once, and sees all writes of the others.
TEST(BufferTest, ReferencesAreCountedOnManyThreads) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<int> values(4, 0);
    int released = 0;
    int sum = 0;
    Buffer buffer = Buffer::Borrow(values.data(), 16, [&] {
      ++released;
      for (const int value : values) sum += value;
    });
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&values, i, mine = buffer]() mutable {
        for (int round = 0; round < 1000; ++round) {
          const Buffer copy = mine.Slice(i, 1);
          values[i] = round;
        }
        mine = Buffer();
      });
    }
    buffer = Buffer();
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(released, 1);
    ASSERT_EQ(sum, 4 * 999);
  }
}

}  // namespace
}  // namespace nereus
