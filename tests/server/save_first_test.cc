#include "server/coordinator/save_first.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Action that saves state `number`.
SaveState Save(int number) {
  SaveState action;
  action.state.next_rank = number;
  return action;
}

SendToMember Send(SessionId session) {
  return {session, PrepareEpoch{/*target=*/1}};
}

CompleteCheckpoint Complete(int64_t round) {
  CompleteCheckpoint action;
  action.record.round = round;
  return action;
}

std::string TextOf(const CoordinatorAction& action) {
  if (const auto* send = std::get_if<SendToMember>(&action)) {
    return absl::StrCat("send ", send->session);
  }
  if (const auto* end = std::get_if<EndSession>(&action)) {
    return absl::StrCat("end ", end->session);
  }
  if (const auto* announce = std::get_if<Announce>(&action)) {
    return absl::StrCat("log ", announce->text);
  }
  if (const auto* complete = std::get_if<CompleteCheckpoint>(&action)) {
    return absl::StrCat("complete ", complete->record.round);
  }
  return "save, which is not to be carried out";
}

// An owner with a clock and a disk, which works, fails or hangs. Each event
// returns what was saved and carried out, in order.
class SaveFirstTest : public testing::Test {
 protected:
  std::vector<std::string> CarryOut(CoordinatorOutbox out) {
    save_first_.Add(std::move(out));
    return GoOn();
  }
  std::vector<std::string> GoOn() {
    std::vector<std::string> done;
    while (true) {
      while (const auto action = save_first_.Next()) {
        done.push_back(TextOf(*action));
      }
      const auto state = save_first_.BeginSave(now_);
      if (state == nullptr) return done;
      ++tries_;
      if (hangs_) return done;
      if (disk_.ok()) done.push_back(absl::StrCat("save ", state->next_rank));
      save_first_.OnSaved(disk_, now_);
    }
  }
  // Hands over nothing new, some time later.
  std::vector<std::string> Later(
      absl::Duration time = absl::Milliseconds(200)) {
    now_ += time;
    return CarryOut({});
  }
  // Ends the save that hangs.
  std::vector<std::string> EndSave() {
    hangs_ = false;
    save_first_.OnSaved(disk_, now_);
    return GoOn();
  }
  absl::Duration unsaved_for() const { return save_first_.unsaved_for(now_); }

  SaveFirst save_first_;
  absl::Status disk_;
  bool hangs_ = false;
  int tries_ = 0;
  absl::Time now_ = absl::UnixEpoch();
};

absl::Status Full() { return UnavailableError("disk is full"); }

TEST_F(SaveFirstTest, ActionsAreCarriedOutInOrderAfterTheirState) {
  EXPECT_THAT(CarryOut({Send(1), Save(1), Send(2), EndSession{2}, Complete(7)}),
              ElementsAre("send 1", "save 1", "send 2", "end 2", "complete 7"));
  EXPECT_EQ(unsaved_for(), absl::ZeroDuration());
  EXPECT_TRUE(save_first_.empty());
}

// The newest state stands for those before it.
TEST_F(SaveFirstTest, OneSaveStandsForAllStatesThatWait) {
  EXPECT_THAT(CarryOut({Save(1), Send(1), Save(2), Send(2)}),
              ElementsAre("save 2", "send 1", "send 2"));
}

TEST_F(SaveFirstTest, NoActionIsCarriedOutBeforeItsStateIsSaved) {
  disk_ = Full();
  EXPECT_THAT(CarryOut({Send(1), Save(1), Send(2), EndSession{2}, Complete(7)}),
              ElementsAre("send 1"));
  EXPECT_THAT(Later(), IsEmpty());
  EXPECT_THAT(Later(), IsEmpty());
}

TEST_F(SaveFirstTest, HeldActionsFollowCompleteAndInOrder) {
  disk_ = Full();
  CarryOut({Save(1), Send(2), EndSession{2}});
  EXPECT_THAT(CarryOut({Send(3), Save(2), Complete(7)}), IsEmpty());
  EXPECT_THAT(CarryOut({Send(4)}), IsEmpty());
  EXPECT_EQ(save_first_.messages(), 3);
  disk_ = absl::OkStatus();
  EXPECT_THAT(Later(), ElementsAre("save 2", "send 2", "end 2", "send 3",
                                   "complete 7", "send 4"));
  // Nothing is carried out twice.
  EXPECT_THAT(Later(), IsEmpty());
  EXPECT_THAT(CarryOut({Send(5)}), ElementsAre("send 5"));
}

// An action may follow from a state that is not saved, although it has none of
// its own.
TEST_F(SaveFirstTest, LaterActionsDoNotOvertakeHeldActions) {
  disk_ = Full();
  CarryOut({Save(1), Send(2)});
  disk_ = absl::OkStatus();
  now_ += absl::Milliseconds(200);
  EXPECT_THAT(CarryOut({Send(3)}), ElementsAre("save 1", "send 2", "send 3"));
}

// "epoch 5 begins" must not be told before it is so.
TEST_F(SaveFirstTest, LogLinesWaitForTheStateThatTheyTellOf) {
  disk_ = Full();
  EXPECT_THAT(CarryOut({Announce{false, "epoch 5"}, Send(1), Save(1), Send(2)}),
              ElementsAre("send 1"));
  EXPECT_THAT(CarryOut({Announce{true, "a worker is refused"}}), IsEmpty());
  disk_ = absl::OkStatus();
  EXPECT_THAT(Later(), ElementsAre("save 1", "send 2", "log epoch 5",
                                   "log a worker is refused"));
}

TEST_F(SaveFirstTest, SaveThatHangsHoldsUpOnlyWhatFollows) {
  hangs_ = true;
  EXPECT_THAT(CarryOut({Send(1), Save(1), Send(2)}), ElementsAre("send 1"));
  // The second save waits for the first.
  EXPECT_THAT(CarryOut({Save(2), Send(3)}), IsEmpty());
  EXPECT_THAT(Later(absl::Seconds(3)), IsEmpty());
  EXPECT_EQ(tries_, 1);
  EXPECT_EQ(unsaved_for(), absl::Seconds(3));
  EXPECT_EQ(save_first_.failure(), absl::OkStatus());
  // The save was of the first state.
  EXPECT_THAT(EndSave(), ElementsAre("send 2", "save 2", "send 3"));
  EXPECT_EQ(unsaved_for(), absl::ZeroDuration());
}

TEST_F(SaveFirstTest, SaveIsTriedAgainAtMostFiveTimesASecond) {
  disk_ = Full();
  CarryOut({Save(1), Send(1)});
  EXPECT_EQ(tries_, 1);
  for (int event = 0; event < 10; ++event) CarryOut({Send(2)});
  EXPECT_THAT(Later(absl::Milliseconds(199)), IsEmpty());
  EXPECT_EQ(tries_, 1);
  Later(absl::Milliseconds(1));
  EXPECT_EQ(tries_, 2);
  // Time counts from the last try.
  Later(absl::Milliseconds(199));
  EXPECT_EQ(tries_, 2);
  Later(absl::Milliseconds(1));
  EXPECT_EQ(tries_, 3);
}

TEST_F(SaveFirstTest, FailureAndItsDurationAreKnownUntilASaveWorks) {
  disk_ = Full();
  CarryOut({Save(1)});
  EXPECT_EQ(unsaved_for(), absl::ZeroDuration());
  Later(absl::Seconds(3));
  EXPECT_EQ(unsaved_for(), absl::Seconds(3));
  EXPECT_EQ(save_first_.failure(), Full());
  // Another reason is no new failure.
  disk_ = PermissionDeniedError("read-only file system");
  Later(absl::Seconds(2));
  EXPECT_EQ(unsaved_for(), absl::Seconds(5));
  EXPECT_EQ(save_first_.failure(), disk_);
  disk_ = absl::OkStatus();
  Later(absl::Seconds(1));
  EXPECT_EQ(unsaved_for(), absl::ZeroDuration());
  EXPECT_EQ(save_first_.failure(), absl::OkStatus());
  now_ += absl::Seconds(9);
  EXPECT_EQ(unsaved_for(), absl::ZeroDuration());
  // Time counts anew from the next failure.
  disk_ = Full();
  CarryOut({Save(2)});
  now_ += absl::Seconds(1);
  EXPECT_EQ(unsaved_for(), absl::Seconds(1));
}

TEST_F(SaveFirstTest, DiskThatFailsIsHopelessSoonerThanOneThatHangs) {
  const absl::Duration lease = absl::Seconds(10);
  disk_ = Full();
  CarryOut({Save(1)});
  now_ += lease;
  EXPECT_FALSE(save_first_.IsHopeless(lease, now_));
  now_ += absl::Seconds(1);
  EXPECT_TRUE(save_first_.IsHopeless(lease, now_));
  disk_ = absl::OkStatus();
  Later();
  EXPECT_FALSE(save_first_.IsHopeless(lease, now_));
  hangs_ = true;
  CarryOut({Save(2)});
  now_ += SaveFirst::kHangingLeases * lease;
  EXPECT_FALSE(save_first_.IsHopeless(lease, now_));
  now_ += absl::Seconds(1);
  EXPECT_TRUE(save_first_.IsHopeless(lease, now_));
}

}  // namespace
}  // namespace nereus
