#include "server/shard/chunk_replica.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"

namespace nereus {

void ChunkReplica::Reset() {
  state_ = State::kUnknown;
  incoming_ = ChunkCopy();
}

// The primary's side.

// The backup also delays a round while the whole chunk is on its way to it. If
// the round closed in this time, the backup would lack it.
bool ChunkReplica::DelaysClosing() const {
  return epoch_.has_backup() &&
         (epoch_.servers().backup_is_current || state_ == State::kSent ||
          state_ == State::kCurrent);
}

// A backup that was not current when the epoch began delays no answer. Before
// its state is kCurrent, it has the values of all answers: from the means, or
// from the whole chunk.
bool ChunkReplica::AllowsShowing() const {
  return !epoch_.has_backup() || !epoch_.servers().backup_is_current ||
         state_ == State::kCurrent;
}

absl::StatusOr<Landing> ChunkReplica::OnHaveHeader(const FrameHeader& header,
                                                   int64_t open, bool may_close,
                                                   bool offered) const {
  if (header.kind != FrameKind::kHave || header.payload_bytes != 0 ||
      header.offset != 0 || header.part != kValuesPart) {
    return RefuseFrame(header,
                       "a backup must send frames of kind have, without "
                       "payload, with offset 0 and part 0");
  }
  const bool closes = may_close && header.round == open + 1;
  if (header.round > open && !closes) {
    return RefuseFrame(header, "round ", open, " is open");
  }
  const bool expected = state_ == State::kUnknown ||
                        (state_ == State::kSent && header.round == open) ||
                        (state_ == State::kCurrent && offered && closes);
  return expected ? Landing::Scratch() : Landing::Discard();
}

// On the backup, the mean is the only contribution to the round. It is cut into
// the frames that the round has. For a sparse round without frames, the backup
// gets one frame without payload.
void ChunkReplica::SendMean(int64_t round, const FullRound& full, bool skipped,
                            Outbox& out) const {
  const Job& job = *epoch_.job;
  const PeerId backup = epoch_.other();
  FrameHeader header = held_.Header(epoch_, FrameKind::kAggregate, round);
  if (skipped) {
    header.kind = FrameKind::kVerdict;
    header.part = kSkipped;
    out.Add(SendFrame{backup, {header, {}}});
    return;
  }
  const auto& chosen = full.chosen_frames();
  const auto count = absl::c_count(chosen, true);
  header.frames = static_cast<uint16_t>(count);
  if (full.sparse() && count == 0) {
    header.wire = job.WireOf(header);
    out.Add(SendFrame{backup, {header, {}}});
    return;
  }
  const FrameGrid grid = job.GridOf(held_.chunk);
  for (int64_t index = 0; index < grid.Count(); ++index) {
    if (!full.has(index)) continue;
    header.part = full.resumed(index) ? kResumedPart : kValuesPart;
    out.Add(SendFrame{backup, CutFrame(job, header, grid, index, full.sum())});
  }
}

// Parts follow each other: parameters, arrays of state, and the last mean.
void ChunkReplica::SendChunk(int64_t open, Outbox& out) {
  state_ = State::kSent;
  FrameHeader header = held_.Header(epoch_, FrameKind::kCopy, open - 1);
  const auto send = [&](const Buffer& values) {
    CutIntoFrames(*epoch_.job, header, values, [&](Frame frame) {
      out.Add(SendFrame{epoch_.other(), std::move(frame)});
    });
    ++header.part;
  };
  const int64_t bytes = held_.parameters.bytes();
  send(held_.parameters);
  for (int64_t start = 0; start < held_.state.bytes(); start += bytes) {
    send(held_.state.Slice(start, bytes));
  }
  // A server that became the primary may still have a mean of an earlier plan.
  if (HasMean(open - 1) && held_.mean.bytes() > 0) send(held_.mean);
}

// The backup's side.

absl::StatusOr<Landing> ChunkReplica::OnPrimaryHeader(
    const FrameHeader& header, int64_t open, const FullRound& full) const {
  switch (header.kind) {
    case FrameKind::kVerdict:
      return OnVerdictHeader(header, open);
    case FrameKind::kAggregate:
      return OnMeanHeader(header, open, full);
    case FrameKind::kCopy:
      return OnCopyHeader(header, open);
    default:
      return RefuseFrame(header, "backups take means, verdicts and copies");
  }
}

// A skipped round has no mean: the verdict closes it.
absl::StatusOr<Landing> ChunkReplica::OnVerdictHeader(const FrameHeader& header,
                                                      int64_t open) const {
  if (header.round < open) return Landing::Discard();
  if (!epoch_.job->votes() || !epoch_.Updates(held_.chunk.layer) ||
      header.round > open || header.round == kInitialRound ||
      incoming_.begun() || header.payload_bytes != 0 || header.offset != 0 ||
      header.part != kSkipped) {
    return RefuseFrame(header, "only round ", open,
                       ", which is open, may be skipped");
  }
  return Landing::Scratch();
}

// While a copy is on its way here, the backup takes no mean: once the copy is
// complete, another round is open.
absl::StatusOr<Landing> ChunkReplica::OnMeanHeader(
    const FrameHeader& header, int64_t open, const FullRound& full) const {
  const int64_t frame = NEREUS_TRY(full.Find(header));
  if (header.round < open) return Landing::Discard();
  if (header.round != kInitialRound && !epoch_.UsesServers(held_.chunk.layer)) {
    return RefuseFrame(header,
                       "workers exchange this layer without the servers");
  }
  const bool part_known = header.part == kValuesPart || full.sparse();
  if (header.round > open || !part_known || incoming_.begun()) {
    return RefuseFrame(header, "the backup follows round ", open,
                       incoming_.begun() ? ", and receives a copy now" : "");
  }
  NEREUS_TRY(full.Check(0, frame, header));
  return full.Has(0, frame) ? Landing::Discard() : Landing::Scratch();
}

// The first frame of a copy begins it, whichever part it belongs to.
absl::StatusOr<Landing> ChunkReplica::OnCopyHeader(const FrameHeader& header,
                                                   int64_t open) const {
  const int64_t frame = NEREUS_TRY(FrameIndex(header, held_.chunk.length));
  if (header.round < open) return Landing::Discard();
  const ChunkCopy first =
      incoming_.begun() ? ChunkCopy() : BeginCopy(header.round);
  const ChunkCopy& copy = incoming_.begun() ? incoming_ : first;
  if (header.round != copy.round() || header.part >= copy.parts()) {
    return RefuseFrame(
        header,
        incoming_.begun()
            ? absl::StrCat("the backup receives a copy of ", copy.parts(),
                           " parts as of round ", copy.round())
            : absl::StrCat("a copy as of this round has ", copy.parts(),
                           " parts"));
  }
  return copy.Has(header.part, frame) ? Landing::Discard() : Landing::Scratch();
}

std::optional<ChunkCopy> ChunkReplica::OnCopyFrame(const Frame& frame,
                                                   Outbox& out) {
  const FrameHeader& header = frame.header;
  if (!incoming_.begun()) incoming_ = BeginCopy(header.round);
  incoming_.Add(header.part, header.offset / kFrameElementsMax, frame.payload,
                out);
  if (!incoming_.complete()) return std::nullopt;
  return std::exchange(incoming_, ChunkCopy());
}

// Workers hold the optimizer state of layers that they own. A server has it
// only as of a base round after the initial one: from a checkpoint, or from the
// switch round of an earlier plan.
ChunkCopy ChunkReplica::BeginCopy(int64_t round) const {
  const Job& job = *epoch_.job;
  const bool restored = job.history.base_round != kInitialRound;
  const bool has_state = epoch_.Updates(held_.chunk.layer) || restored;
  return ChunkCopy(round, held_.chunk.length, has_state ? job.state_arrays : 0,
                   HasMean(round));
}

bool ChunkReplica::HasMean(int64_t round) const {
  const Job& job = *epoch_.job;
  return job.options.optimizer_place == OptimizerPlace::kWorker &&
         epoch_.UsesServers(held_.chunk.layer) &&
         round > job.history.base_round;
}

void ChunkReplica::SayHave(int64_t open, Outbox& out) const {
  out.Add(SendFrame{epoch_.other(),
                    {held_.Header(epoch_, FrameKind::kHave, open), {}}});
}

}  // namespace nereus
