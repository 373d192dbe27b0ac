#include "server/shard/chunk_backup.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nereus {

// A chunk on its way counts as well: the backup would lack the rounds that
// close meanwhile.
bool ChunkBackup::DelaysClosing() const {
  if (!epoch_.has_backup()) return false;
  return epoch_.servers().backup_is_current || state_ == State::kSent ||
         state_ == State::kCurrent;
}

// A backup that was not current when the epoch began gets the values with the
// whole chunk, before it becomes current.
bool ChunkBackup::AllowsShowing() const {
  return !epoch_.has_backup() || !epoch_.servers().backup_is_current ||
         state_ == State::kCurrent;
}

absl::StatusOr<Landing> ChunkBackup::OnHaveHeader(const FrameHeader& header,
                                                  int64_t open, bool may_close,
                                                  bool offered) const {
  if (header.kind != FrameKind::kHave || header.payload_bytes != 0 ||
      header.offset != 0 || header.part != kValuesPart) {
    return RefuseFrame(header, "a backup says what it has, with no payload");
  }
  const bool closes = may_close && header.round == open + 1;
  if (header.round > open && !closes) {
    return RefuseFrame(header, absl::StrCat("round ", open, " is open"));
  }
  const bool expected = state_ == State::kUnknown ||
                        (state_ == State::kSent && header.round == open) ||
                        (state_ == State::kCurrent && offered && closes);
  return expected ? Landing::Scratch() : Landing::Discard();
}

void ChunkBackup::OnHave(int64_t round, int64_t open) {
  state_ = round >= open ? State::kCurrent : State::kBehind;
}

// A mean goes out as one contribution of this server, in the frames that the
// round has; a round without frames is one frame without payload.
void ChunkBackup::SendMean(const HeldChunk& held, int64_t round,
                           const FullRound& full, bool skipped,
                           Outbox& out) const {
  const Job& job = *epoch_.job;
  const PeerId backup = epoch_.backup();
  FrameHeader header = MakeHeader(job, epoch_.self, FrameKind::kAggregate,
                                  held.chunk.layer, held.chunk.index, round);
  if (skipped) {
    header.kind = FrameKind::kVerdict;
    header.part = kSkipped;
    out.Add(SendFrame{backup, {header, {}}});
    return;
  }
  const FrameGrid grid = job.GridOf(held.chunk);
  std::vector<int64_t> frames;
  for (int64_t index = 0; index < grid.Count(); ++index) {
    if (full.has(index)) frames.push_back(index);
  }
  if (full.sparse()) header.frames = static_cast<uint16_t>(frames.size());
  for (const int64_t index : frames) {
    header.part = full.resumed(index) ? kResumedPart : kValuesPart;
    out.Add(SendFrame{backup, CutFrame(job, header, grid, index, full.sum())});
  }
  if (!frames.empty()) return;
  header.wire = job.WireOf(header);
  out.Add(SendFrame{backup, {header, {}}});
}

// Parts follow each other: parameters, arrays of state, and the last mean.
void ChunkBackup::SendChunk(const HeldChunk& held, int64_t open, Outbox& out) {
  state_ = State::kSent;
  FrameHeader header = MakeHeader(*epoch_.job, epoch_.self, FrameKind::kCopy,
                                  held.chunk.layer, held.chunk.index, open - 1);
  const auto send = [&](const Buffer& values) {
    CutIntoFrames(*epoch_.job, header, values, [&](Frame frame) {
      out.Add(SendFrame{epoch_.backup(), std::move(frame)});
    });
    ++header.part;
  };
  const int64_t bytes = held.parameters.bytes();
  send(held.parameters);
  for (int64_t start = 0; start < held.state.bytes(); start += bytes) {
    send(held.state.Slice(start, bytes));
  }
  if (held.mean.bytes() > 0) send(held.mean);
}

}  // namespace nereus
