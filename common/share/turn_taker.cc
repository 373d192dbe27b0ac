#include "common/share/turn_taker.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/logging.h"

namespace nereus {
namespace {

using State = TurnSlot::State;

// Number of turns whose median is the usual one.
constexpr size_t kTurnsMeasured = 15;

absl::Duration MedianOf(const std::deque<absl::Duration>& times) {
  std::vector<absl::Duration> sorted(times.begin(), times.end());
  const auto middle = sorted.begin() + sorted.size() / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

}  // namespace

TurnTaker::TurnTaker(TurnBoard* board, TurnSlot self, absl::Duration limit_min)
    : board_(*board), limit_min_(limit_min), slot_(std::move(self)) {
  slot_.limit = limit_min_;
  board_.Claim(slot_);
}

void TurnTaker::Enter(State state, absl::Time now) {
  slot_.state = state;
  slot_.since = now;
  board_.Write(slot_);
}

void TurnTaker::Ask(int64_t step, double key, absl::Duration cost,
                    absl::Time now) {
  slot_.step = step;
  slot_.key = key;
  slot_.cost = cost;
  slot_.limit = LimitOf();
  if (slot_.state != State::kOut) return;
  slot_.has_asked = true;
  Enter(State::kAsks, now - gave_up_at_ < kPlaceKept ? asked_since_ : now);
  board_.Tell();
}

void TurnTaker::SetMemory(int64_t resident_bytes, int64_t turn_bytes) {
  if (slot_.resident_bytes == resident_bytes &&
      slot_.turn_bytes == turn_bytes) {
    return;
  }
  slot_.resident_bytes = resident_bytes;
  slot_.turn_bytes = turn_bytes;
  board_.Write(slot_);
  board_.Tell();
}

absl::StatusOr<std::optional<absl::Time>> TurnTaker::Try(absl::Time now) {
  NEREUS_CHECK(slot_.state != State::kOut) << "a client that has not asked";
  if (Holds()) return std::nullopt;
  if (slot_.state == State::kIn) {
    // Another client has passed this one.
    Enter(State::kAsks, now);
    board_.Tell();
  }
  const TurnTable table = NEREUS_TRY(board_.Read());
  const TurnDecision decision = DecideTurn(table, board_.own(), now);
  if (!decision.takes) return decision.until;
  slot_.tried_at = now;
  board_.Write(slot_);
  const std::optional<uint64_t> turn = board_.Take(table.turn);
  if (!turn.has_value()) return now;  // The table has changed.
  turn_ = *turn;
  slot_.wait_time += now - slot_.since;
  slot_.is_admitted = true;
  NoteStep(now);
  Enter(State::kIn, now);
  return std::nullopt;
}

void TurnTaker::Give(absl::Time now) {
  if (slot_.state == State::kOut) return;
  gave_up_at_ = absl::InfinitePast();
  if (slot_.state == State::kAsks) {
    gave_up_at_ = now;
    asked_since_ = slot_.since;
  } else {
    const absl::Duration lasted = now - slot_.since;
    ++slot_.turn_count;
    slot_.turn_time += lasted;
    lasted_.push_back(lasted);
    if (lasted_.size() > kTurnsMeasured) lasted_.pop_front();
    slot_.limit = LimitOf();
  }
  const bool had = slot_.state == State::kIn;
  Enter(State::kOut, now);
  if (!had || !board_.Give(turn_, now)) board_.Tell();
}

absl::Duration TurnTaker::LimitOf() const {
  absl::Duration usual = slot_.cost;
  if (!lasted_.empty()) usual = std::max(usual, MedianOf(lasted_));
  return std::max(limit_min_, kLimitTurns * usual);
}

void TurnTaker::NoteStep(absl::Time now) {
  if (slot_.step == last_step_) return;
  if (slot_.step == last_step_ + 1) {
    const absl::Duration time =
        now - step_began_ - (slot_.wait_time - waited_before_);
    // A mean that forgets.
    slot_.step_time = slot_.step_time == absl::ZeroDuration()
                          ? time
                          : slot_.step_time + (time - slot_.step_time) / 8;
  }
  last_step_ = slot_.step;
  step_began_ = now;
  waited_before_ = slot_.wait_time;
}

}  // namespace nereus
