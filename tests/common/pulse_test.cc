#include "common/protocol/pulse.h"

#include <gtest/gtest.h>

namespace nereus {
namespace {

const LongWork kWork = {LongWork::Kind::kRestore, 3, 40};

void ExpectBeat(const Pulse::Beat& beat, bool is_alive, bool has_work,
                bool asks) {
  EXPECT_EQ(beat.is_alive, is_alive);
  EXPECT_EQ(beat.work.has_value(), has_work);
  EXPECT_EQ(beat.asks, asks);
}

// A driver that has just started has had no time to answer.
TEST(PulseTest, NewMemberIsAlive) {
  Pulse pulse;
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*has_work=*/false,
             /*asks=*/true);
}

TEST(PulseTest, AnsweringDriverStaysAlive) {
  Pulse pulse;
  for (int beat = 0; beat < 5; ++beat) {
    ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*has_work=*/false,
               /*asks=*/true);
    pulse.Answer();
  }
}

TEST(PulseTest, SilentDriverIsNotAliveAndIsNotAskedTwice) {
  Pulse pulse;
  pulse.OnDue();
  for (int beat = 0; beat < 5; ++beat) {
    ExpectBeat(pulse.OnDue(), /*is_alive=*/false, /*has_work=*/false,
               /*asks=*/false);
  }
}

TEST(PulseTest, LateAnswerMakesTheDriverAliveAgain) {
  Pulse pulse;
  pulse.OnDue();
  pulse.OnDue();
  pulse.OnDue();
  pulse.Answer();
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*has_work=*/false,
             /*asks=*/true);
  ExpectBeat(pulse.OnDue(), /*is_alive=*/false, /*has_work=*/false,
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
  pulse.SetWork(kWork);
  for (int beat = 0; beat < 5; ++beat) {
    ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*has_work=*/true,
               /*asks=*/false);
  }
}

// A restore runs on another thread, so the driver answers meanwhile.
TEST(PulseTest, WorkIsReportedAlsoIfTheDriverAnswers) {
  Pulse pulse;
  pulse.SetWork(kWork);
  EXPECT_EQ(pulse.OnDue().work, kWork);
  pulse.Answer();
  const LongWork later = {LongWork::Kind::kRestore, 4, 40};
  pulse.SetWork(later);
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*has_work=*/true,
             /*asks=*/true);
  EXPECT_EQ(pulse.OnDue().work, later);
}

TEST(PulseTest, DriverBlockedAfterLongWorkIsNotAlive) {
  Pulse pulse;
  pulse.OnDue();
  pulse.SetWork(kWork);
  EXPECT_TRUE(pulse.OnDue().is_alive);
  pulse.SetWork(std::nullopt);
  ExpectBeat(pulse.OnDue(), /*is_alive=*/false, /*has_work=*/false,
             /*asks=*/false);
  pulse.Answer();
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*has_work=*/false,
             /*asks=*/true);
}

}  // namespace
}  // namespace nereus
