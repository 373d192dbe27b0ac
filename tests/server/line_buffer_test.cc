#include "server/admin/line_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(LineBufferTest, JoinsPiecesAndSplitsAtLineFeeds) {
  LineBuffer buffer(/*line_bytes_max=*/100);
  EXPECT_THAT(buffer.Append("ab"), IsEmpty());
  EXPECT_THAT(buffer.Append("c\n\nde\nf"), ElementsAre("abc", "", "de"));
  EXPECT_THAT(buffer.Append("g\n"), ElementsAre("fg"));
  EXPECT_EQ(buffer.Finish(), std::nullopt);
}

TEST(LineBufferTest, FinishGivesTheUnfinishedLineOnce) {
  LineBuffer buffer(/*line_bytes_max=*/100);
  EXPECT_THAT(buffer.Append("last words"), IsEmpty());
  EXPECT_EQ(buffer.Finish(), "last words");
  EXPECT_EQ(buffer.Finish(), std::nullopt);
}

TEST(LineBufferTest, CutsALongLineAtTheLimitAndGoesOnWithTheNext) {
  LineBuffer buffer(/*line_bytes_max=*/4);
  EXPECT_THAT(buffer.Append("abcdef"), IsEmpty());
  EXPECT_THAT(buffer.Append("ghi"), IsEmpty());
  EXPECT_THAT(buffer.Append("j\nabcd\nabcde\nxy\n"),
              ElementsAre("abcd (6 more bytes are cut)", "abcd",
                          "abcd (1 more bytes are cut)", "xy"));
}

}  // namespace
}  // namespace nereus
