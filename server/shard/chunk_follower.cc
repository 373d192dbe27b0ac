#include "server/shard/chunk_follower.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace nereus {

absl::StatusOr<Landing> ChunkFollower::OnHeader(const FrameHeader& header,
                                                int64_t open,
                                                const FullRound& full) const {
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
absl::StatusOr<Landing> ChunkFollower::OnVerdictHeader(
    const FrameHeader& header, int64_t open) const {
  if (header.round < open) return Landing::Discard();
  if (!epoch_.job->votes() || !epoch_.Updates(held_.chunk.layer) ||
      header.round > open || header.round == kInitialRound ||
      incoming_.begun() || header.payload_bytes != 0 || header.offset != 0 ||
      header.part != kSkipped) {
    return RefuseFrame(header, absl::StrCat("round ", open,
                                            " is the one that may be skipped"));
  }
  return Landing::Scratch();
}

// While a copy is on its way, the open round is about to change, and takes no
// mean.
absl::StatusOr<Landing> ChunkFollower::OnMeanHeader(
    const FrameHeader& header, int64_t open, const FullRound& full) const {
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame, full.Find(header));
  if (header.round < open) return Landing::Discard();
  if (header.round != kInitialRound && !epoch_.UsesServers(held_.chunk.layer)) {
    return RefuseFrame(header, "the layer goes between the workers");
  }
  const bool part_known = header.part == kValuesPart || full.sparse();
  if (header.round > open || !part_known || incoming_.begun()) {
    return RefuseFrame(
        header,
        absl::StrCat("the backup follows round ", open,
                     incoming_.begun() ? ", and a copy is on its way" : ""));
  }
  NEREUS_RETURN_IF_ERROR(full.Check(0, frame, header));
  return full.Has(0, frame) ? Landing::Discard() : Landing::Scratch();
}

// The first frame of a copy begins it, whichever part it belongs to.
absl::StatusOr<Landing> ChunkFollower::OnCopyHeader(const FrameHeader& header,
                                                    int64_t open) const {
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame,
                          FrameIndex(header, held_.chunk.length));
  if (header.round < open) return Landing::Discard();
  if (!incoming_.begun()) {
    if (header.part < BeginCopy(header.round).parts()) {
      return Landing::Scratch();
    }
    return RefuseFrame(header, "there is no such part as of this round");
  }
  if (header.round != incoming_.round() || header.part >= incoming_.parts()) {
    return RefuseFrame(
        header,
        absl::StrCat("a copy of ", incoming_.parts(), " parts as of round ",
                     incoming_.round(), " is on its way"));
  }
  return incoming_.Has(header.part, frame) ? Landing::Discard()
                                           : Landing::Scratch();
}

std::optional<ChunkCopy> ChunkFollower::OnCopyFrame(const Frame& frame,
                                                    Outbox& out) {
  const FrameHeader& header = frame.header;
  if (!incoming_.begun()) incoming_ = BeginCopy(header.round);
  incoming_.Add(header.part, header.offset / kFrameElementsMax, frame.payload,
                out);
  if (!incoming_.complete()) return std::nullopt;
  return std::exchange(incoming_, ChunkCopy());
}

// Workers hold the state of layers that they own. The servers have it only as
// of a checkpoint that the job goes on from.
ChunkCopy ChunkFollower::BeginCopy(int64_t round) const {
  const Job& job = *epoch_.job;
  const bool restored = job.base_round != kInitialRound;
  const bool has_state = epoch_.Updates(held_.chunk.layer) || restored;
  const bool has_mean =
      job.options.optimizer_place == OptimizerPlace::kWorker &&
      epoch_.UsesServers(held_.chunk.layer) && round > job.base_round;
  return ChunkCopy(round, held_.chunk.length, has_state ? job.state_arrays : 0,
                   has_mean);
}

void ChunkFollower::SayHave(int64_t open, Outbox& out) const {
  out.Add(SendFrame{epoch_.primary(),
                    {MakeHeader(*epoch_.job, epoch_.self, FrameKind::kHave,
                                held_.chunk.layer, held_.chunk.index, open),
                     {}}});
}

}  // namespace nereus
