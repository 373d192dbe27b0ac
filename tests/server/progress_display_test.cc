#include "server/admin/progress_display.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace nereus {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(ProgressDisplayTest, WritesALineNowAndThenIfThereIsNoTerminal) {
  std::ostringstream out;
  ProgressDisplay display(&out, /*is_terminal=*/false);
  display.Show("a", kStart);
  display.Show("b", kStart + absl::Seconds(1));
  display.Show("c", kStart + absl::Seconds(2));
  display.Show("c", kStart + absl::Seconds(4));
  display.PrintLine("note");
  display.Clear();
  EXPECT_EQ(out.str(), "a\nc\nnote\n");
}

TEST(ProgressDisplayTest, DrawsInPlaceOnATerminalAndKeepsOtherLinesWhole) {
  std::ostringstream out;
  ProgressDisplay display(&out, /*is_terminal=*/true);
  display.Show("a", kStart);
  display.Show("b", kStart + absl::Milliseconds(100));
  display.Show("c", kStart + absl::Milliseconds(200));
  display.Show("c", kStart + absl::Milliseconds(400));
  EXPECT_EQ(out.str(), "\r\x1b[Ka\r\x1b[Kc");

  out.str("");
  display.PrintLine("note");
  display.Show("c", kStart + absl::Milliseconds(600));
  display.Clear();
  display.Clear();
  EXPECT_EQ(out.str(), "\r\x1b[Knote\n\r\x1b[Kc\r\x1b[K");
}

TEST(ProgressDisplayTest, AllLinesAreJsonWithJsonEvenOnATerminal) {
  std::ostringstream out;
  ProgressDisplay display(&out, /*is_terminal=*/true, LogFormat::kJson);
  display.Show("a", kStart);
  display.PrintLineOf("shard 0", "{\"b\":1}");
  display.PrintLineOf("shard 0", "crash");
  display.Clear();
  const auto line = [](const std::string& message) {
    return "\\{\"time\":\"[^\"]*\",\"severity\":\"INFO\",\"message\":\"" +
           message + "\",\"role\":\"nereusctl\"}\n";
  };
  EXPECT_THAT(out.str(), testing::MatchesRegex(line("a") + "\\{\"b\":1}\n" +
                                               line("shard 0: crash")));
}

}  // namespace
}  // namespace nereus
