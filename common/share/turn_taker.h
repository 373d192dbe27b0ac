#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/share/turn_board.h"
#include "common/share/turn_table.h"

namespace nereus {

// Side of one client in the turns at a device: what the client has asked for,
// and whether it may compute.
//
//   out --Ask--> asks --Try--> in --Give--> out
//
// Rule of safety: a client never waits for a frame while it has the turn. Then
// every turn ends by computing alone, and jobs cannot lock each other, in
// whatever order the nodes give the turns.
//
// Pure but for the board. For one thread at a time.
class TurnTaker {
 public:
  // Shortest time after which other clients may pass a holder, and the factor
  // of its usual turn that it has in any case.
  static constexpr absl::Duration kLimitMin = absl::Seconds(2);
  static constexpr int kLimitTurns = 10;
  // Time for which a client that asks no more keeps its place: it may ask
  // again, because a call has timed out and is repeated.
  static constexpr absl::Duration kPlaceKept = absl::Seconds(1);

  // `self`: the constant fields of this client's slot. `limit_min`: see
  // kLimitMin. `board` is not owned, and must outlive this.
  TurnTaker(TurnBoard* board, TurnSlot self,
            absl::Duration limit_min = kLimitMin);

  // Asks for the turn of a step. `key`, `cost`: TurnSlot. If the client asks or
  // has the turn already, only the step changes.
  void Ask(int64_t step, double key, absl::Duration cost, absl::Time now);
  // Takes the turn, if this client is next. Returns nothing if it has the turn
  // now; otherwise the time at which to try again, unless the board changes
  // before. Errors: those of TurnBoard::Read. REQUIRES: Ask was called since
  // the last Give.
  absl::StatusOr<std::optional<absl::Time>> Try(absl::Time now);
  // Gives the turn back, or asks for it no more.
  void Give(absl::Time now);

  // True if this client has the turn. False if another client has passed it,
  // for example because this process was stopped: then it tries again.
  bool Holds() const {
    return slot_.state == TurnSlot::State::kIn && board_.Holds(turn_);
  }
  bool is_out() const { return slot_.state == TurnSlot::State::kOut; }

  // Sets the job and the rank of the worker, which it hears when it joins.
  void SetIdentity(uint64_t job_id, int32_t rank) {
    slot_.job_id = job_id;
    slot_.rank = rank;
  }
  // Sets what memory the client keeps and needs (TurnSlot::resident_bytes,
  // turn_bytes). Those that wait for memory decide again.
  void SetMemory(int64_t resident_bytes, int64_t turn_bytes);
  const TurnSlot& slot() const { return slot_; }

 private:
  absl::Duration LimitOf() const;
  // Measures steps, at the first turn of each.
  void NoteStep(absl::Time now);
  void Enter(TurnSlot::State state, absl::Time now);

  TurnBoard& board_;
  const absl::Duration limit_min_;
  TurnSlot slot_;                      // This client's slot, as it is written.
  uint64_t turn_ = 0;                  // Number of this client's last turn.
  std::deque<absl::Duration> lasted_;  // Times of the last turns.
  // Time since which the client had asked when it asked no more, and that time.
  absl::Time asked_since_ = absl::InfinitePast();
  absl::Time gave_up_at_ = absl::InfinitePast();
  // Step of the last turn, its first turn, and slot_.wait_time then.
  int64_t last_step_ = -1;
  absl::Time step_began_;
  absl::Duration waited_before_;
};

}  // namespace nereus
