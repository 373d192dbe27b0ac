#include "server/admin/screen.h"

#include <gtest/gtest.h>

#include <sstream>

namespace nereus {
namespace {

TEST(ScreenTest, TextThatFitsIsNotChanged) {
  EXPECT_EQ(FitToTerminal("a\nbc\n", 2, 2), "a\nbc\n");
  EXPECT_EQ(FitToTerminal("", 2, 2), "");
}

TEST(ScreenTest, CutsLinesAndSaysHowManyAreMissing) {
  EXPECT_EQ(FitToTerminal("abc\nd\n", 5, 2), "ab\nd\n");
  EXPECT_EQ(FitToTerminal("a\nb\nc\nd\n", 3, 9), "a\nb\n... 2 more lines\n");
}

TEST(ScreenTest, WithoutATerminalTextsFollowEachOther) {
  std::ostringstream out;
  Screen screen(&out, -1);
  screen.Show("a\nb\n", /*is_last=*/false);
  screen.Show("c\n", /*is_last=*/true);
  EXPECT_EQ(out.str(), "a\nb\n\nc\n");
}

// A file is no terminal, so its size is not known: 24 rows and 80 columns.
TEST(ScreenTest, OnATerminalTextsReplaceEachOther) {
  std::ostringstream out;
  Screen screen(&out, /*terminal=*/0x7fff);
  screen.Show("a\nb\n", /*is_last=*/false);
  screen.Show("c\n", /*is_last=*/true);
  EXPECT_EQ(out.str(),
            "\x1b[2J\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J\x1b[Hc\x1b[K\n\x1b[J");
}

}  // namespace
}  // namespace nereus
