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

// An owner with a clock and a disk, which works or not. Each event returns what
// was saved and carried out, in order.
class SaveFirstTest : public testing::Test {
 protected:
  std::vector<std::string> CarryOut(CoordinatorOutbox out) {
    std::vector<std::string> done;
    save_first_.CarryOut(
        std::move(out), now_,
        [&](const CoordinatorState& state) {
          ++tries_;
          if (disk_.ok()) {
            done.push_back(absl::StrCat("save ", state.next_rank));
          }
          return disk_;
        },
        [&](const CoordinatorAction& action) {
          done.push_back(TextOf(action));
        });
    return done;
  }
  // Hands over nothing new, some time later.
  std::vector<std::string> Later(
      absl::Duration time = absl::Milliseconds(200)) {
    now_ += time;
    return CarryOut({});
  }
  absl::Duration failing_for() const { return save_first_.failing_for(now_); }

  SaveFirst save_first_;
  absl::Status disk_;
  int tries_ = 0;
  absl::Time now_ = absl::UnixEpoch();
};

absl::Status Full() { return UnavailableError("disk is full"); }

TEST_F(SaveFirstTest, StateIsSavedInTheOrderOfTheActions) {
  EXPECT_THAT(CarryOut({Send(1), Save(1), Send(2), EndSession{2}, Complete(7),
                        Save(2), Send(3)}),
              ElementsAre("send 1", "save 1", "send 2", "end 2", "complete 7",
                          "save 2", "send 3"));
  EXPECT_EQ(failing_for(), absl::ZeroDuration());
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
  disk_ = absl::OkStatus();
  EXPECT_THAT(Later(), ElementsAre("save 1", "send 2", "end 2", "send 3",
                                   "save 2", "complete 7", "send 4"));
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

TEST_F(SaveFirstTest, LogLinesAreNeverHeldBack) {
  disk_ = Full();
  EXPECT_THAT(CarryOut({Save(1), Send(2), Announce{true, "shard 0 is gone"}}),
              ElementsAre("log shard 0 is gone"));
  EXPECT_THAT(CarryOut({Announce{false, "another"}}),
              ElementsAre("log another"));
  disk_ = absl::OkStatus();
  EXPECT_THAT(Later(), ElementsAre("save 1", "send 2"));
}

TEST_F(SaveFirstTest, SecondSaveMayFailAfterTheFirst) {
  disk_ = Full();
  CarryOut({Save(1), Send(1), Save(2), Send(2)});
  std::vector<std::string> done;
  now_ += absl::Milliseconds(200);
  save_first_.CarryOut(
      {}, now_,
      [&](const CoordinatorState& state) {
        return state.next_rank == 1 ? absl::OkStatus() : Full();
      },
      [&](const CoordinatorAction& action) { done.push_back(TextOf(action)); });
  EXPECT_THAT(done, ElementsAre("send 1"));
  disk_ = absl::OkStatus();
  EXPECT_THAT(Later(), ElementsAre("save 2", "send 2"));
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
  EXPECT_EQ(failing_for(), absl::ZeroDuration());
  Later(absl::Seconds(3));
  EXPECT_EQ(failing_for(), absl::Seconds(3));
  EXPECT_EQ(save_first_.failure(), Full());
  // Another reason is no new failure.
  disk_ = PermissionDeniedError("read-only file system");
  Later(absl::Seconds(2));
  EXPECT_EQ(failing_for(), absl::Seconds(5));
  EXPECT_EQ(save_first_.failure(), disk_);
  disk_ = absl::OkStatus();
  Later(absl::Seconds(1));
  EXPECT_EQ(failing_for(), absl::ZeroDuration());
  now_ += absl::Seconds(9);
  EXPECT_EQ(failing_for(), absl::ZeroDuration());
  // Time counts anew from the next failure.
  disk_ = Full();
  CarryOut({Save(2)});
  now_ += absl::Seconds(1);
  EXPECT_EQ(failing_for(), absl::Seconds(1));
}

TEST_F(SaveFirstTest, ClearedActionsAreNeverCarriedOut) {
  disk_ = Full();
  CarryOut({Save(1), Send(1)});
  now_ += absl::Seconds(1);
  save_first_.Clear();
  EXPECT_EQ(failing_for(), absl::ZeroDuration());
  disk_ = absl::OkStatus();
  EXPECT_THAT(CarryOut({Save(2), Send(2)}), ElementsAre("save 2", "send 2"));
}

// An action may end the coordinator: then its owner forgets the rest.
TEST_F(SaveFirstTest, OwnerMayClearTheQueueWhileCarryingOut) {
  std::vector<std::string> done;
  save_first_.CarryOut(
      {Send(1), Send(2), Save(1), Send(3)}, now_,
      [&](const CoordinatorState&) {
        ADD_FAILURE() << "nothing is left to save";
        return absl::OkStatus();
      },
      [&](const CoordinatorAction& action) {
        done.push_back(TextOf(action));
        save_first_.Clear();
      });
  EXPECT_THAT(done, ElementsAre("send 1"));
}

}  // namespace
}  // namespace nereus
