#include "server/admin/prefixed_lines.h"

#include <gtest/gtest.h>

#include <sstream>

namespace nereus {
namespace {

TEST(PrefixedLinesTest, EachLineBeginsWithItsWorker) {
  std::ostringstream out;
  PrefixedLines lines(&out, /*is_terminal=*/false);
  lines.Write(0, "step 1");
  lines.Write(12, "");
  EXPECT_EQ(out.str(), "[worker-0] step 1\n[worker-12] \n");
  EXPECT_TRUE(lines.ok());
}

TEST(PrefixedLinesTest, OnlyATerminalGetsColours) {
  std::ostringstream out;
  PrefixedLines lines(&out, /*is_terminal=*/true);
  lines.Write(1, "a");
  lines.Write(7, "b");  // There are six colours.
  EXPECT_EQ(out.str(),
            "\x1b[32m[worker-1]\x1b[0m a\n\x1b[32m[worker-7]\x1b[0m b\n");
}

TEST(PrefixedLinesTest, LineThatWasDrawnAgainAppearsAsItWasLast) {
  std::ostringstream out;
  PrefixedLines lines(&out, /*is_terminal=*/false);
  lines.Write(0, "\r 10 %\r100 %");
  lines.Write(0, "windows\r");
  lines.Write(0, "\r");
  EXPECT_EQ(out.str(), "[worker-0] 100 %\n[worker-0] windows\n[worker-0] \n");
}

TEST(PrefixedLinesTest, ProgressBarThatErasesItselfStays) {
  std::ostringstream out;
  PrefixedLines lines(&out, /*is_terminal=*/false);
  lines.Write(0, "100 %\r     \r");
  lines.Write(0, "windows\r\r");
  lines.Write(0, "  ");
  EXPECT_EQ(out.str(), "[worker-0] 100 %\n[worker-0] windows\n[worker-0]   \n");
}

TEST(PrefixedLinesTest, JsonObjectsStayAsTheyAreWithJson) {
  std::ostringstream out;
  PrefixedLines lines(&out, /*is_terminal=*/false, LogFormat::kJson);
  lines.Write(0, "{\"a\":1}");
  lines.Write(0, "step 1");
  EXPECT_EQ(out.str(), "{\"a\":1}\n[worker-0] step 1\n");
}

TEST(PrefixedLinesTest, LostLineIsNoticed) {
  std::ostringstream out;
  PrefixedLines lines(&out, /*is_terminal=*/false);
  out.setstate(std::ios::badbit);
  lines.Write(0, "step 1");
  EXPECT_FALSE(lines.ok());
}

}  // namespace
}  // namespace nereus
