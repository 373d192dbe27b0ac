// How a shard and its copy keep together.

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/shard/shard.h"

namespace nereus {
namespace {

absl::Status Refuse(const FrameHeader& header, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(DescribeFrame(header), ": ", why));
}

}  // namespace

bool Shard::AwaitsCopy(const Slot& slot) const {
  if (!has_copy()) return false;
  // One that is not whole yet does not hold up what it does not have.
  return servers().backup_is_current || slot.copy == CopyState::kSent ||
         slot.copy == CopyState::kWhole;
}

bool Shard::MayShow(const Slot& slot) const {
  return !has_copy() || !servers().backup_is_current ||
         slot.copy == CopyState::kWhole;
}

bool Shard::copy_is_whole() const {
  return has_copy() &&
         std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
           return slot.copy == CopyState::kWhole;
         });
}

// Frames of the other side.

absl::StatusOr<Landing> Shard::OnServerHeader(PeerId from, const Slot& slot,
                                              const FrameHeader& header) const {
  const int other = serves() ? servers().backup : servers().primary;
  if (from.rank != other) {
    return Refuse(header, absl::StrCat("shard ", index_, " is served by ",
                                       servers().primary, " and copied by ",
                                       servers().backup));
  }
  return serves() ? OnHaveHeader(slot, header) : OnCopyHeader(slot, header);
}

absl::StatusOr<Landing> Shard::OnHaveHeader(const Slot& slot,
                                            const FrameHeader& header) const {
  if (header.kind != FrameKind::kHave || header.payload_bytes != 0 ||
      header.offset != 0 || header.part != kValuesPart) {
    return Refuse(header, "a copy says what it has, with no payload");
  }
  const bool was_offered = slot.offered || slot.completed_in < job_->epoch;
  const bool closes =
      slot.closing && was_offered && header.round == slot.round + 1;
  if (header.round > slot.round && !closes) {
    return Refuse(header, absl::StrCat("round ", slot.round, " is open"));
  }
  const bool expected =
      slot.copy == CopyState::kUnknown ||
      (slot.copy == CopyState::kSent && header.round == slot.round) ||
      (slot.copy == CopyState::kWhole && slot.offered && closes);
  return expected ? Landing::Scratch() : Landing::Discard();
}

absl::StatusOr<Landing> Shard::OnSkipHeader(const Slot& slot,
                                            const FrameHeader& header) const {
  if (header.round < slot.round) return Landing::Discard();
  if (!job_->votes() || !updates_here(slot) || header.round > slot.round ||
      header.round == kInitialRound || slot.incoming.begun() ||
      header.payload_bytes != 0 || header.offset != 0 ||
      header.part != kSkipped) {
    return Refuse(header, absl::StrCat("round ", slot.round,
                                       " is the one that may be skipped"));
  }
  return Landing::Scratch();
}

absl::StatusOr<Landing> Shard::OnCopyHeader(const Slot& slot,
                                            const FrameHeader& header) const {
  if (header.kind == FrameKind::kVerdict) return OnSkipHeader(slot, header);
  if (header.kind != FrameKind::kAggregate && header.kind != FrameKind::kCopy) {
    return Refuse(header, "copies take aggregates, verdicts and copies");
  }
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame,
                          header.kind == FrameKind::kAggregate
                              ? slot.aggregation.Find(header)
                              : FrameIndex(header, slot.chunk.length));
  if (header.round < slot.round) return Landing::Discard();
  if (header.kind == FrameKind::kAggregate) {
    const bool passes = !UsesServers(job_->routes[slot.chunk.layer].scheme);
    if (header.round != kInitialRound && passes) {
      return Refuse(header, "the layer goes between the workers");
    }
    const bool part_known =
        header.part == kValuesPart || slot.aggregation.sparse();
    if (header.round > slot.round || !part_known || slot.incoming.begun()) {
      return Refuse(
          header,
          absl::StrCat("the copy follows round ", slot.round,
                       slot.incoming.begun() ? ", and is being made" : ""));
    }
    NEREUS_RETURN_IF_ERROR(slot.aggregation.Check(0, frame, header));
    return slot.aggregation.Has(0, frame) ? Landing::Discard()
                                          : Landing::Scratch();
  }
  if (!slot.incoming.begun()) {
    if (header.part < MakeCopy(slot, header.round).parts()) {
      return Landing::Scratch();
    }
    return Refuse(header, "there is no such part as of this round");
  }
  if (header.round != slot.incoming.round() ||
      header.part >= slot.incoming.parts()) {
    return Refuse(
        header,
        absl::StrCat("a copy of ", slot.incoming.parts(), " parts as of round ",
                     slot.incoming.round(), " is being made"));
  }
  return slot.incoming.Has(header.part, frame) ? Landing::Discard()
                                               : Landing::Scratch();
}

void Shard::OnServerFrame(Slot& slot, const Frame& frame, Outbox& out) {
  const FrameHeader& header = frame.header;
  if (header.kind == FrameKind::kHave) return OnHave(slot, header.round, out);
  if (header.kind == FrameKind::kVerdict) {
    slot.skipped = true;
    slot.completed_in = job_->epoch;
    Close(slot, out);
  } else if (header.kind == FrameKind::kAggregate) {
    slot.aggregation.Add(0, header, frame.payload, out);
    if (!slot.aggregation.complete()) return;
    CompleteIfSettled(slot, out);
  } else {
    if (!slot.incoming.begun()) slot.incoming = MakeCopy(slot, header.round);
    slot.incoming.Add(header.part, header.offset / kFrameElementsMax,
                      frame.payload, out);
    if (!slot.incoming.complete()) return;
    TakeCopy(slot);
  }
  SayWhatIsHere(slot, out);
}

// On the server.

void Shard::OnHave(Slot& slot, int64_t round, Outbox& out) {
  if (slot.copy == CopyState::kSent) copying_ = false;
  const bool closed = round == slot.round + 1;
  if (closed || round == slot.round) {
    slot.copy = CopyState::kWhole;
    // They asked for the round before, or, if it is of an earlier epoch, get
    // this one as Close has made it.
    ServeEarlyPulls(slot, out);
    if (closed) {
      Close(slot, out);
    } else {
      CloseUnlessAwaited(slot, out);
    }
  } else {
    slot.copy = CopyState::kBehind;
    ++behind_;
  }
  SendNextCopy(out);
}

void Shard::OfferMean(Slot& slot, Outbox& out) const {
  FrameHeader header =
      MakeHeader(*job_, self_, FrameKind::kAggregate, slot.chunk.layer,
                 slot.chunk.index, slot.round);
  if (slot.skipped) {
    header.kind = FrameKind::kVerdict;
    header.part = kSkipped;
    out.Add(SendFrame{PeerId::Shard(servers().backup), {header, {}}});
    return;
  }
  const FrameGrid grid = job_->GridOf(slot.chunk);
  const AggregationRound& round = slot.aggregation;
  std::vector<int64_t> frames;
  for (int64_t index = 0; index < grid.Count(); ++index) {
    if (round.has(index)) frames.push_back(index);
  }
  if (round.sparse()) header.frames = static_cast<uint16_t>(frames.size());
  const PeerId copy = PeerId::Shard(servers().backup);
  for (const int64_t index : frames) {
    header.part = round.resumed(index) ? kResumedPart : kValuesPart;
    out.Add(SendFrame{copy, CutFrame(*job_, header, grid, index, round.sum())});
  }
  if (!frames.empty()) return;
  header.wire = job_->WireOf(header);
  out.Add(SendFrame{copy, {header, {}}});
}

void Shard::SendNextCopy(Outbox& out) {
  // One at a time: rounds of other chunks go on meanwhile.
  if (behind_ == 0 || copying_) return;
  const auto next = std::find_if(
      slots_.begin(), slots_.end(),
      [](const Slot& slot) { return slot.copy == CopyState::kBehind; });
  --behind_;
  copying_ = true;
  next->copy = CopyState::kSent;
  SendCopy(*next, out);
}

void Shard::SendCopy(const Slot& slot, Outbox& out) const {
  const int64_t round = slot.round - 1;
  FrameHeader header = MakeHeader(*job_, self_, FrameKind::kCopy,
                                  slot.chunk.layer, slot.chunk.index, round);
  const auto send = [&](const Buffer& values) {
    CutIntoFrames(*job_, header, values, [&](Frame frame) {
      out.Add(SendFrame{PeerId::Shard(servers().backup), std::move(frame)});
    });
    ++header.part;
  };
  const int64_t bytes = slot.parameters.bytes();
  send(slot.parameters);
  for (int64_t start = 0; start < slot.state.bytes(); start += bytes) {
    send(slot.state.Slice(start, bytes));
  }
  if (slot.average.bytes() > 0) send(slot.average);
}

// On the copy.

void Shard::SayWhatIsHere(const Slot& slot, Outbox& out) const {
  out.Add(SendFrame{PeerId::Shard(servers().primary),
                    {MakeHeader(*job_, self_, FrameKind::kHave,
                                slot.chunk.layer, slot.chunk.index, slot.round),
                     {}}});
}

ChunkCopy Shard::MakeCopy(const Slot& slot, int64_t round) const {
  const bool restored = job_->base_round != kInitialRound;
  const bool has_state = updates_here(slot) || restored;
  const bool has_average =
      job_->options.optimizer_place == OptimizerPlace::kWorker &&
      UsesServers(job_->routes[slot.chunk.layer].scheme) &&
      round > job_->base_round;
  return ChunkCopy(round, slot.chunk.length, has_state ? job_->state_arrays : 0,
                   has_average);
}

void Shard::TakeCopy(Slot& slot) const {
  const ChunkCopy copy = std::exchange(slot.incoming, ChunkCopy());
  slot.parameters = copy.parameters();
  slot.state = copy.state();
  slot.average = copy.average();
  slot.round = copy.round() + 1;
  slot.closed_in = job_->epoch;
  ReopenRound(slot);
}

}  // namespace nereus
