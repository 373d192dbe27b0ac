#include "common/driver/driving_turn.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/mutex.h"

namespace nereus {
namespace {

// An owner like MachineDriver: it waits for events while it has the turn.
class Owner {
 public:
  Owner()
      : turn_([this] {
          MutexLock lock(&mu_);
          interrupted_ = true;
        }),
        thread_([this] { Run(); }) {}
  ~Owner() {
    turn_.Stop();
    thread_.join();
  }

  DrivingTurn& turn() { return turn_; }
  int turns() const { return turns_; }
  void AwaitTurns(int count) const {
    while (turns_ < count) absl::SleepFor(absl::Microseconds(20));
  }
  // A value that only the thread with the turn may touch. ThreadSanitizer
  // checks this too.
  int& shared() { return shared_; }

 private:
  void Run() {
    while (turn_.OwnerTakes()) {
      ++turns_;
      while (!turn_.wanted()) {
        ++shared_;
        --shared_;
        MutexLock lock(&mu_);
        mu_.Await([this] { return interrupted_; });
        interrupted_ = false;
      }
      turn_.OwnerGives();
    }
  }

  Mutex mu_;
  bool interrupted_ = false;
  std::atomic<int> turns_{0};
  int shared_ = 0;
  DrivingTurn turn_;
  std::thread thread_;
};

TEST(DrivingTurnTest, OwnerHasTheTurnUnlessAGuestWantsIt) {
  Owner owner;
  owner.AwaitTurns(1);
  EXPECT_TRUE(owner.turn().taken());
  EXPECT_FALSE(owner.turn().wanted());
}

TEST(DrivingTurnTest, OwnerGivesTheTurnToAGuestAndTakesItBack) {
  Owner owner;
  for (int visit = 1; visit <= 20; ++visit) {
    owner.AwaitTurns(visit);
    ASSERT_TRUE(owner.turn().GuestTakes());
    EXPECT_TRUE(owner.turn().taken());
    EXPECT_FALSE(owner.turn().wanted());
    absl::SleepFor(2 * DrivingTurn::kGuestReturnMax);
    EXPECT_EQ(owner.turns(), visit);
    owner.turn().GuestGives();
  }
  owner.AwaitTurns(21);
}

TEST(DrivingTurnTest, OwnerTakesTheTurnBackAfterALongVisit) {
  Owner owner;
  owner.AwaitTurns(1);
  // The guest takes the turn twice in quick succession. It keeps the second
  // turn for longer than the owner yields.
  ASSERT_TRUE(owner.turn().GuestTakes());
  owner.turn().GuestGives();
  ASSERT_TRUE(owner.turn().GuestTakes());
  const int turns = owner.turns();
  absl::SleepFor(100 * DrivingTurn::kOwnerYield);
  EXPECT_EQ(owner.turns(), turns);
  owner.turn().GuestGives();
  owner.AwaitTurns(turns + 1);
}

TEST(DrivingTurnTest, SecondGuestIsRefusedTheTurn) {
  Owner owner;
  ASSERT_TRUE(owner.turn().GuestTakes());
  EXPECT_FALSE(owner.turn().GuestTakes());
  owner.turn().GuestGives();
  ASSERT_TRUE(owner.turn().GuestTakes());
  owner.turn().GuestGives();
}

TEST(DrivingTurnTest, NoGuestTakesTheTurnAfterStop) {
  Owner owner;
  owner.turn().Stop();
  EXPECT_FALSE(owner.turn().GuestTakes());
}

TEST(DrivingTurnTest, OnlyASingleThreadHasTheTurnUnderContention) {
  Owner owner;
  std::atomic<int> visits{0};
  std::vector<std::thread> guests;
  for (int guest = 0; guest < 3; ++guest) {
    guests.emplace_back([&, guest] {
      for (int i = 0; i < 2000; ++i) {
        if (!owner.turn().GuestTakes()) continue;
        EXPECT_EQ(owner.shared()++, 0);
        --owner.shared();
        ++visits;
        owner.turn().GuestGives();
        if (i % 100 == guest) absl::SleepFor(3 * DrivingTurn::kOwnerYield);
      }
    });
  }
  for (std::thread& guest : guests) guest.join();
  EXPECT_GT(visits, 0);
  while (!owner.turn().taken()) absl::SleepFor(absl::Microseconds(20));
}

}  // namespace
}  // namespace nereus
