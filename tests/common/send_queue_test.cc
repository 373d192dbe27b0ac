#include "common/protocol/send_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

FrameHeader OfLayer(uint32_t layer) {
  FrameHeader header;
  header.layer = layer;
  return header;
}

TEST(SendQueueTest, LayersThatTheNextForwardNeedsFirstGoFirst) {
  SendQueue<int> queue;
  EXPECT_TRUE(queue.empty());
  // As backward makes them: the last layer first, of two frames each.
  for (int i = 0; i < 6; ++i) queue.Push(OfLayer(2 - i / 2), i);
  EXPECT_EQ(queue.Pop(), 4);
  queue.Push(OfLayer(1), 6);
  queue.Push(OfLayer(0), 7);
  EXPECT_THAT(queue.TakeAll(), ElementsAre(5, 7, 2, 3, 6, 0, 1));
  EXPECT_TRUE(queue.empty());
  EXPECT_THAT(queue.TakeAll(), IsEmpty());
}

}  // namespace
}  // namespace nereus
