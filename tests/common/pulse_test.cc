#include "common/protocol/pulse.h"

#include <gtest/gtest.h>

namespace nereus {
namespace {

void ExpectBeat(const Pulse::Beat& beat, bool is_alive, bool is_busy,
                bool asks) {
  EXPECT_EQ(beat.is_alive, is_alive);
  EXPECT_EQ(beat.is_busy, is_busy);
  EXPECT_EQ(beat.asks, asks);
}

// A driver that has just started has had no time to answer.
TEST(PulseTest, NewMemberIsAlive) {
  Pulse pulse;
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*is_busy=*/false,
             /*asks=*/true);
}

TEST(PulseTest, AnsweringDriverStaysAlive) {
  Pulse pulse;
  for (int beat = 0; beat < 5; ++beat) {
    ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*is_busy=*/false,
               /*asks=*/true);
    pulse.Answer();
  }
}

TEST(PulseTest, SilentDriverIsNotAliveAndIsNotAskedTwice) {
  Pulse pulse;
  pulse.OnDue();
  for (int beat = 0; beat < 5; ++beat) {
    ExpectBeat(pulse.OnDue(), /*is_alive=*/false, /*is_busy=*/false,
               /*asks=*/false);
  }
}

TEST(PulseTest, LateAnswerMakesTheDriverAliveAgain) {
  Pulse pulse;
  pulse.OnDue();
  pulse.OnDue();
  pulse.OnDue();
  pulse.Answer();
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*is_busy=*/false,
             /*asks=*/true);
  ExpectBeat(pulse.OnDue(), /*is_alive=*/false, /*is_busy=*/false,
             /*asks=*/false);
}

TEST(PulseTest, SeveralAnswersCountAsASingleAnswer) {
  Pulse pulse;
  pulse.OnDue();
  pulse.Answer();
  pulse.Answer();
  EXPECT_TRUE(pulse.OnDue().is_alive);
  EXPECT_FALSE(pulse.OnDue().is_alive);
}

TEST(PulseTest, BusyDriverIsAliveWithoutAnswers) {
  Pulse pulse;
  pulse.OnDue();
  pulse.SetBusy(true);
  for (int beat = 0; beat < 5; ++beat) {
    ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*is_busy=*/true,
               /*asks=*/false);
  }
}

// The driver had answered before it began its work.
TEST(PulseTest, BusyDriverIsAskedAgainAfterAnAnswer) {
  Pulse pulse;
  pulse.SetBusy(true);
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*is_busy=*/false,
             /*asks=*/true);
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*is_busy=*/true,
             /*asks=*/false);
}

TEST(PulseTest, DriverBlockedAfterLongWorkIsNotAlive) {
  Pulse pulse;
  pulse.OnDue();
  pulse.SetBusy(true);
  EXPECT_TRUE(pulse.OnDue().is_alive);
  pulse.SetBusy(false);
  ExpectBeat(pulse.OnDue(), /*is_alive=*/false, /*is_busy=*/false,
             /*asks=*/false);
  pulse.Answer();
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*is_busy=*/false,
             /*asks=*/true);
}

}  // namespace
}  // namespace nereus
