#include "common/transport/socket/frame_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SendQueueTest, LowPriorityValuesGoFirstAndKeepTheirOrder) {
  SendQueue<int> queue;
  EXPECT_TRUE(queue.empty());
  // Frames in the order of backward: the last layer first, two frames each.
  for (int i = 0; i < 6; ++i) queue.Push(2 - i / 2, i);
  EXPECT_EQ(queue.Pop(), 4);
  queue.Push(1, 6);
  queue.Push(0, 7);
  EXPECT_THAT(queue.TakeAll(), ElementsAre(5, 7, 2, 3, 6, 0, 1));
  EXPECT_TRUE(queue.empty());
  EXPECT_THAT(queue.TakeAll(), IsEmpty());
}

}  // namespace
}  // namespace nereus
