#include "server/coordinator/last_checkpoint.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"

namespace nereus {
namespace {

// Longest wait for the last checkpoint: longer than any disk takes. If a part
// may be lost, the wait is a lease.
const absl::Duration kTimeMax = absl::Minutes(30);

}  // namespace

int64_t LastCheckpoint::LastStep() const {
  const Job& job = *epochs_.job();
  std::optional<int64_t> last;
  for (const MemberRecord& member : roster_.members()) {
    // Skips workers that left before the epoch began.
    if (!member.has_left() || job.PositionOf(member.id.rank) < 0) continue;
    const int64_t step = *member.last_step;
    last = job.partial() ? std::max(last.value_or(step), step)
                         : std::min(last.value_or(step), step);
  }
  return last.value_or(kInitialRound);
}

bool LastCheckpoint::Lacks() const {
  return options_.has_checkpoints && checkpoints_.saved_round() < LastStep();
}

// If a shard is lost, the job goes back to its newest checkpoint, and waits for
// one that lacks only its manifest.
std::optional<int64_t> LastCheckpoint::AwaitedRound() const {
  if (!options_.has_checkpoints) return std::nullopt;
  const int64_t round = LastStep();
  const bool is_lost = epochs_.Has(ChangeReason::kShardLost) &&
                       !checkpoints_.newest().has_value() &&
                       !checkpoints_.IsCompleting(round);
  if (round <= kInitialRound || checkpoints_.HasFailed(round) ||
      checkpoints_.saved_round() >= round || is_lost) {
    return std::nullopt;
  }
  return round;
}

std::optional<int32_t> LastCheckpoint::Sender(int64_t round) const {
  const Job& job = *epochs_.job();
  for (const MemberRecord& member : roster_.members()) {
    if (!member.is_worker() || member.told_over) continue;
    const int position = job.PositionOf(member.id.rank);
    if (position < 0 || job.workers[position].first_step > round) continue;
    return member.id.rank;
  }
  return std::nullopt;
}

// Frames with worker-owned layers are lost if their connection breaks or their
// sender dies.
bool LastCheckpoint::MayBeLost(int64_t round) const {
  const Job& job = *epochs_.job();
  if (epochs_.Has(ChangeReason::kCoordinatorRestarted) ||
      epochs_.target().has_value() ||
      (job.partial() && epochs_.Has(ChangeReason::kMemberLost))) {
    return true;
  }
  const std::optional<int32_t> sender = Sender(round);
  if (!sender.has_value()) return true;
  const PeerId worker = PeerId::Worker(*sender);
  const auto& broken = epochs_.links().of_epoch();
  return absl::c_any_of(broken, [&](const PeerPair& link) {
    return (link.first == worker && link.second.role == Role::kShard) ||
           (link.second == worker && link.first.role == Role::kShard);
  });
}

bool LastCheckpoint::Ask(int64_t round, absl::Time now,
                         CoordinatorOutbox& out) {
  const uint64_t epoch = epochs_.job()->epoch;
  if (std::exchange(asked_in_, epoch) != epoch) {
    gives_up_at_ = absl::InfiniteFuture();
  }
  // A server that was lost may be started again.
  const bool may_be_lost =
      !LacksServer(*epochs_.job(), roster_) && MayBeLost(round);
  gives_up_at_ =
      std::min(gives_up_at_, now + (may_be_lost ? options_.lease() : kTimeMax));
  if (now >= gives_up_at_) return false;
  const Job& job = *epochs_.job();
  // If all workers are gone, names the first one, which cannot send: the
  // worker-owned layers are lost.
  const SaveLast last{job.epoch, round,
                      Sender(round).value_or(job.workers.front().rank)};
  for (MemberRecord& member : roster_.members()) {
    if (!member.session.has_value() || !member.admitted ||
        member.save_told == last) {
      continue;
    }
    member.save_told = last;
    member.Send(last, out);
  }
  return true;
}

}  // namespace nereus
