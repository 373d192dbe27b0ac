#include "common/share/turn_taker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/network/event_queue.h"
#include "tests/simulation/simulated_device.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

// Job of one client: computes in its turn, and then waits for the network.
class ToyJob {
 public:
  ToyJob(EventQueue* events, SimulatedDevice* device, const std::string& name,
         absl::Duration computes, absl::Duration waits, double weight = 1)
      : events_(*events), computes_(computes), waits_(waits), weight_(weight) {
    TurnSlot self;
    self.job = name;
    self.job_id = name[0];
    self.weight = weight;
    client_ = &device->Add({[this](const SimulatedDevice::Task& task) {
                              if (is_dead) return;
                              if (is_stopped) return deferred.push_back(task);
                              task();
                            },
                            [this] { return !is_dead && !is_stopped; }});
    taker_ = std::make_unique<TurnTaker>(&client_->board(), self);
    client_->Serve(taker_.get());
  }
  void Start() { Begin(); }
  void Die(SimulatedDevice& device) {
    is_dead = true;
    device.Kill(*client_);
  }
  void Resume() {
    is_stopped = false;
    for (const auto& task : std::exchange(deferred, {})) task();
  }
  int64_t step() const { return step_; }
  bool HasTurn() const { return taker_->Holds(); }

  bool is_dead = false;
  bool is_stopped = false;
  std::vector<SimulatedDevice::Task> deferred;

 private:
  void After(absl::Duration time, SimulatedDevice::Task task) {
    events_.After(time, [this, task] {
      if (is_dead) return;
      if (is_stopped) return deferred.push_back(task);
      task();
    });
  }
  void Begin() {
    taker_->Ask(
        step_,
        static_cast<double>(step_) * absl::ToDoubleSeconds(computes_) / weight_,
        computes_, events_.now());
    client_->Await([this] { After(computes_, [this] { End(); }); });
  }
  void End() {
    if (!taker_->Holds()) {
      // Passed: the rest of the step needs the turn.
      return client_->Await([this] { End(); });
    }
    taker_->Give(events_.now());
    ++step_;
    After(waits_, [this] { Begin(); });
  }

  EventQueue& events_;
  const absl::Duration computes_;
  const absl::Duration waits_;
  const double weight_;
  SimulatedDevice::Client* client_;
  std::unique_ptr<TurnTaker> taker_;
  int64_t step_ = 0;
};

class TurnTakerTest : public testing::Test {
 protected:
  ToyJob& Add(const std::string& name, absl::Duration computes,
              absl::Duration waits, double weight = 1) {
    jobs_.push_back(std::make_unique<ToyJob>(&events_, &device_, name, computes,
                                             waits, weight));
    return *jobs_.back();
  }
  void RunFor(absl::Duration time) {
    const absl::Time end = events_.now() + time;
    while (events_.now() < end && events_.RunNext()) {
    }
    EXPECT_LE(device_.holders_max(), 1);
    EXPECT_LE(device_.idle_max(), kTurnGrace + absl::Microseconds(100));
  }

  EventQueue events_;
  SimulatedDevice device_{&events_, 7};
  std::vector<std::unique_ptr<ToyJob>> jobs_;
};

TEST_F(TurnTakerTest, TwoEqualJobsFillTheWaitsOfEachOther) {
  for (const double share : {0.2, 0.5, 1.0}) {
    ToyJob& a =
        Add("a", absl::Milliseconds(10), absl::Milliseconds(10) * share);
    ToyJob& b =
        Add("b", absl::Milliseconds(10), absl::Milliseconds(10) * share);
    a.Start();
    b.Start();
    RunFor(absl::Seconds(2));
    EXPECT_NEAR(static_cast<double>(a.step() + b.step()), 200, 3) << share;
    EXPECT_NEAR(static_cast<double>(a.step() - b.step()), 0, 1) << share;
    a.Die(device_);
    b.Die(device_);
  }
}

TEST_F(TurnTakerTest, WeightsShareTheDevice) {
  ToyJob& a = Add("a", absl::Milliseconds(10), absl::ZeroDuration(), 2);
  ToyJob& b = Add("b", absl::Milliseconds(10), absl::ZeroDuration());
  a.Start();
  b.Start();
  RunFor(absl::Seconds(3));
  EXPECT_NEAR(static_cast<double>(a.step()) / b.step(), 2, 0.1);
}

TEST_F(TurnTakerTest, SmallAndLargeTurnsShareTheDevice) {
  ToyJob& small = Add("a", absl::Milliseconds(2), absl::ZeroDuration());
  ToyJob& large = Add("b", absl::Milliseconds(50), absl::ZeroDuration());
  small.Start();
  large.Start();
  RunFor(absl::Seconds(5));
  EXPECT_NEAR(small.step() * 2.0 / (large.step() * 50.0), 1, 0.05);
}

TEST_F(TurnTakerTest, AJobThatStoodStillDoesNotKeepTheDevice) {
  ToyJob& a = Add("a", absl::Milliseconds(10), absl::ZeroDuration());
  ToyJob& b = Add("b", absl::Milliseconds(10), absl::ZeroDuration());
  a.Start();
  b.Start();
  RunFor(absl::Seconds(1));
  a.is_stopped = true;
  RunFor(absl::Seconds(60));
  const int64_t before = b.step();
  a.Resume();
  RunFor(absl::Seconds(1));
  EXPECT_GE(b.step() - before, 45);
}

TEST_F(TurnTakerTest, AStoppedHolderIsPassedAtItsLimit) {
  ToyJob& a = Add("a", absl::Milliseconds(100), absl::ZeroDuration());
  ToyJob& b = Add("b", absl::Milliseconds(10), absl::ZeroDuration());
  a.Start();
  b.Start();
  RunFor(absl::Milliseconds(50));
  ASSERT_TRUE(a.HasTurn());
  a.is_stopped = true;
  RunFor(absl::Milliseconds(1940));
  EXPECT_EQ(b.step(), 0);
  RunFor(absl::Milliseconds(200));
  EXPECT_GE(b.step(), 5);
  EXPECT_FALSE(a.HasTurn());
  a.Resume();
  RunFor(absl::Seconds(2));
  EXPECT_GE(a.step(), 8);
}

TEST_F(TurnTakerTest, ADeadHolderIsPassedWithinATenthOfASecond) {
  ToyJob& a = Add("a", absl::Seconds(100), absl::ZeroDuration());
  ToyJob& b = Add("b", absl::Milliseconds(10), absl::ZeroDuration());
  a.Start();
  b.Start();
  RunFor(absl::Seconds(10));
  ASSERT_TRUE(a.HasTurn());
  a.Die(device_);
  RunFor(absl::Milliseconds(100));
  EXPECT_GE(b.step(), 3);
}

TEST_F(TurnTakerTest, FourJobsGetEqualShares) {
  for (const char* const name : {"a", "b", "c", "d"}) {
    Add(name, absl::Milliseconds(5), absl::Milliseconds(3)).Start();
  }
  RunFor(absl::Seconds(4));
  for (const auto& job : jobs_) {
    EXPECT_NEAR(static_cast<double>(job->step()), 200, 3);
  }
  EXPECT_LE(device_.wait_max(), absl::Milliseconds(21));
}

// A table of clients that ask, the first one since the longest time.
TurnTable Asking(std::vector<TurnSlot> slots, int64_t memory_bytes) {
  TurnTable table;
  table.memory_bytes = memory_bytes;
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].is_alive = true;
    slots[i].state = TurnSlot::State::kAsks;
    slots[i].since = absl::UnixEpoch() + absl::Seconds(static_cast<int>(i));
  }
  table.slots = std::move(slots);
  return table;
}

TurnSlot Needing(const std::string& job, int64_t resident, int64_t turn) {
  TurnSlot slot;
  slot.job = job;
  slot.resident_bytes = resident;
  slot.turn_bytes = turn;
  return slot;
}

TEST(TurnTableTest, AJobThatDoesNotFitWaitsForItsFirstTurnAndSaysBesideWhom) {
  constexpr int64_t kMiB = 1 << 20;
  TurnTable table = Asking(
      {Needing("a", 40 * kMiB, 20 * kMiB), Needing("b", 30 * kMiB, 31 * kMiB),
       Needing("c", 10 * kMiB, 20 * kMiB)},
      100 * kMiB);
  table.slots[0].is_admitted = true;
  const absl::Time now = absl::UnixEpoch() + absl::Seconds(5);
  EXPECT_FALSE(FitsMemory(table, 1));
  EXPECT_FALSE(DecideTurn(table, 1, now).takes);
  EXPECT_EQ(DescribeTurnWait(table, 1, now),
            "keeps 30 MiB and needs 31 MiB in its turn, which does not fit "
            "into the 100 MiB of the device beside job a, worker 0 (keeps 40 "
            "MiB, turn 20 MiB)");
  // A later newcomer does not take the memory that an earlier one waits for.
  EXPECT_FALSE(FitsMemory(table, 2));
  table.slots[1].turn_bytes = 30 * kMiB;
  EXPECT_TRUE(FitsMemory(table, 1));
  EXPECT_FALSE(FitsMemory(table, 2));
  table.slots[0].is_alive = false;
  EXPECT_TRUE(FitsMemory(table, 2));
}

TEST(TurnTableTest, TheSmallestKeyIsNextAndTheOthersComeAfterAGrace) {
  TurnTable table = Asking({Needing("a", 0, 0), Needing("b", 0, 0)}, 0);
  table.slots[0].key = 2;
  table.slots[1].key = 1;
  for (TurnSlot& slot : table.slots) slot.cost = absl::Seconds(10);
  const absl::Time now = absl::UnixEpoch() + absl::Seconds(1);
  EXPECT_TRUE(DecideTurn(table, 1, now).takes);
  const TurnDecision later = DecideTurn(table, 0, now);
  EXPECT_FALSE(later.takes);
  EXPECT_EQ(later.until, now + kTurnGrace);
  EXPECT_TRUE(DecideTurn(table, 0, later.until).takes);
  // A client that has waited for longer than its share takes goes first.
  EXPECT_TRUE(DecideTurn(table, 0, now + absl::Seconds(10)).takes);
}

TEST(TurnTableTest, EqualKeysGoByJobAndThenByRank) {
  TurnTable table = Asking({Needing("a", 0, 0), Needing("b", 0, 0)}, 0);
  table.slots[0].job_id = 9;
  table.slots[1].job_id = 3;
  for (TurnSlot& slot : table.slots) slot.cost = absl::Seconds(10);
  const absl::Time now = absl::UnixEpoch() + absl::Seconds(1);
  EXPECT_TRUE(DecideTurn(table, 1, now).takes);
  EXPECT_FALSE(DecideTurn(table, 0, now).takes);
  table.slots[1].job_id = 9;
  table.slots[1].rank = 1;
  EXPECT_TRUE(DecideTurn(table, 0, now).takes);
}

}  // namespace
}  // namespace nereus
