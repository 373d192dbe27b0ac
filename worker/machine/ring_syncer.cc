#include "worker/machine/ring_syncer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace nereus {
namespace {

int64_t BytesOf(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace

RingSyncer::RingSyncer(JobPtr job, int layer, int rank, LayerMemory memory)
    : PeerSyncer(std::move(job), layer, rank, std::move(memory)) {
  OpenFirstRounds();
}

int RingSyncer::Around(const Round& round, int count) const {
  return (position() + count) % round.contributors;
}

RingSegments RingSyncer::SegmentsOf(const Round& round) const {
  return RingSegments(spec().parameters, round.contributors);
}

std::vector<int64_t> RingSyncer::MemoryElements(int) const {
  return {spec().parameters};
}

int64_t RingSyncer::MemoryFrames(int contributors) const {
  if (sparse() != nullptr) return sparse_->grid().Count() + 1;
  const RingSegments segments(spec().parameters, contributors);
  const int64_t full = segments.full_count();
  return full * FrameCount(segments.full_length()) +
         FrameCount(spec().parameters - full * segments.full_length());
}

void RingSyncer::Begin(Round& round) {
  SumsOf(round.round).assign(round.arrived.size(), false);
}

absl::Status RingSyncer::Keep(Buffer gradient) {
  gradient_ = std::move(gradient);
  return absl::OkStatus();
}

void RingSyncer::KeepFactors(FactorBuffers factors, Outbox& out) {
  gradient_ = Multiply(std::move(factors), product_, out);
}

template <typename Each>
void RingSyncer::ForFrames(const Round& round, FrameKind kind, int64_t index,
                           const Buffer& values, Each each) const {
  if (sparse() != nullptr) {
    const FrameGrid& grid = sparse_->grid();
    const auto frames = static_cast<int64_t>(round.chosen.size());
    for (int64_t frame = 0; frame < frames; ++frame) {
      if (!round.chosen[frame] || TurnOf(round, frame) != index) continue;
      FrameHeader header = Header(kind, index, round.round);
      if (frame < grid.Count()) {
        each(CutFrame(*job_, header, grid, frame, values));
      } else {
        header.wire = job_->WireOf(header);
        each(Frame{header, Buffer()});
      }
    }
    return;
  }
  const RingSegments segments = SegmentsOf(round);
  CutIntoFrames(*job_, Header(kind, index, round.round),
                values.Slice(BytesOf(segments.Offset(index)),
                             BytesOf(segments.Length(index))),
                each);
}

void RingSyncer::SendToNext(Frame frame, Outbox& out) const {
  const int next = Around(RoundAt(frame.header.round), 1);
  out.Add(
      SendFrame{PeerId::Worker(job_->workers[next].rank), std::move(frame)});
}

void RingSyncer::SendOwn(Outbox& out) {
  Round& round = RoundAt(next_round());
  const bool alone = round.contributors == 1;
  ForFrames(round, FrameKind::kSum, position(), round.memory[0],
            [&](const Frame& frame) {
              const Buffer own = OwnValues(round, frame.header);
              if (!alone) return SendToNext({frame.header, own}, out);
              out.Add(Accumulate{frame.payload, OwnAddend(round, frame.header),
                                 /*replaces=*/true});
              out.Add(RoundValues{frame.payload, wire()});
              Mark(round, FindPlace(frame.header, round)->index);
            });
  // Those who were faster have sent theirs.
  for (int count = 1; count < round.contributors; ++count) {
    ForFrames(round, FrameKind::kSum, Around(round, count), round.memory[0],
              [&](const Frame& frame) {
                const int64_t place = FindPlace(frame.header, round)->index;
                if (SumsOf(round.round)[place]) PassSum(frame.header, out);
              });
  }
}

int64_t RingSyncer::OffsetOf(const Round& round,
                             const FrameHeader& header) const {
  return header.offset +
         (sparse() != nullptr ? 0 : SegmentsOf(round).Offset(header.chunk));
}

Buffer RingSyncer::OwnValues(const Round& round,
                             const FrameHeader& header) const {
  const int64_t offset = OffsetOf(round, header);
  const int64_t bytes = FloatBytes(header);
  return sparse() != nullptr ? sparse_->Contribution(offset, bytes / 4)
                             : gradient_.Slice(BytesOf(offset), bytes);
}

GradientCheck RingSyncer::ContributionCheck(const Round& round, int position,
                                            const FrameHeader& header) const {
  return {layer_, round.round, job_->workers[position].rank,
          OffsetOf(round, header)};
}

Addend RingSyncer::OwnAddend(const Round& round,
                             const FrameHeader& header) const {
  Addend own(OwnValues(round, header));
  if (job_->checks_contributions()) {
    own.check = ContributionCheck(round, position(), header);
  }
  return own;
}

void RingSyncer::PassSum(const FrameHeader& header, Outbox& out) {
  Round& round = RoundAt(header.round);
  const Place place = *FindPlace(header, round);
  FrameHeader sum = header;
  sum.sender = PeerId::Worker(rank_);
  sum.payload_crc = 0;  // The values change.
  const bool last = static_cast<int>(header.chunk) == Around(round, 1);
  const int before = Around(round, round.contributors - 1);
  if (static_cast<int>(header.chunk) == before &&
      job_->checks_contributions()) {
    out.Add(
        CheckValues{place.values, ContributionCheck(round, before, header)});
  }
  out.Add(
      Accumulate{place.values, OwnAddend(round, header), /*replaces=*/false,
                 last ? 1.0f / static_cast<float>(round.contributors) : 1.0f});
  if (last) {
    out.Add(RoundValues{place.values, wire()});  // As the others get it.
    Mark(round, place.index);
    if (gathers()) PassMean(sum, place.values, out);
    return;
  }
  SendToNext({sum, place.values}, out);
}

void RingSyncer::PassMean(const FrameHeader& header, Buffer values,
                          Outbox& out) const {
  FrameHeader mean = header;
  mean.kind = FrameKind::kMean;
  mean.sender = PeerId::Worker(rank_);
  SendToNext({mean, std::move(values)}, out);
}

absl::StatusOr<PeerSyncer::Place> RingSyncer::FindPlace(
    const FrameHeader& header, const Round& round) const {
  if (header.part != kValuesPart) return Refuse(header, "the part must be 0");
  if (header.chunk >= static_cast<uint32_t>(round.contributors)) {
    return Refuse(
        header, absl::StrCat("the ring has ", round.contributors, " segments"));
  }
  int64_t frame = 0;
  if (sparse() != nullptr) {
    NEREUS_ASSIGN_OR_RETURN(frame, FindSparse(header, round));
  } else {
    const RingSegments segments = SegmentsOf(round);
    NEREUS_ASSIGN_OR_RETURN(
        frame, FrameIndex(header, FrameGrid(segments.Length(header.chunk))));
    frame += header.chunk * FrameCount(segments.full_length());
  }
  return Place{frame, round.memory[0].Slice(BytesOf(OffsetOf(round, header)),
                                            FloatBytes(header))};
}

absl::StatusOr<int64_t> RingSyncer::FindSparse(const FrameHeader& header,
                                               const Round& round) const {
  const FrameGrid& grid = sparse_->grid();
  int64_t frame = grid.Count();
  if (header.payload_bytes > 0 || header.offset > 0) {
    NEREUS_ASSIGN_OR_RETURN(frame, FrameIndex(header, grid));
  }
  if (TurnOf(round, frame) == header.chunk) return frame;
  return Refuse(header,
                absl::StrCat("that block's segment is ", TurnOf(round, frame)));
}

absl::Status RingSyncer::CheckOnRing(const FrameHeader& header,
                                     const Round& round) const {
  const int before = Around(round, round.contributors - 1);
  if (header.sender.rank != job_->workers[before].rank) {
    return Refuse(header, absl::StrCat("worker ", job_->workers[before].rank,
                                       " comes before this one on the ring"));
  }
  const auto segment = static_cast<int>(header.chunk);
  if (header.kind == FrameKind::kSum) {
    if (segment != position()) return absl::OkStatus();
    return Refuse(header, "the sum of that segment begins with this worker");
  }
  if (!round.sent || header.round != next_round()) {
    return Refuse(header, "a mean without this worker's gradient");
  }
  if (segment != Around(round, 1)) return absl::OkStatus();
  return Refuse(header, "the mean of that segment is this worker's to make");
}

absl::StatusOr<Landing> RingSyncer::PlaceFrame(
    const FrameHeader& header) const {
  const Round& round = RoundAt(header.round);
  NEREUS_ASSIGN_OR_RETURN(const Place place, FindPlace(header, round));
  NEREUS_RETURN_IF_ERROR(CheckOnRing(header, round));
  if (sparse() != nullptr && round.sent && !round.chosen[place.index]) {
    return Refuse(header, "that block does not travel in this round");
  }
  const bool repeated = header.kind == FrameKind::kSum
                            ? SumsOf(header.round)[place.index]
                            : round.arrived[place.index];
  return repeated ? Landing::Discard() : Landing::At(place.values);
}

void RingSyncer::TakeFrame(const FrameHeader& header, Outbox& out) {
  Round& round = RoundAt(header.round);
  const Place place = *FindPlace(header, round);
  if (header.kind == FrameKind::kSum) {
    SumsOf(header.round)[place.index] = true;
    if (round.sent) PassSum(header, out);
    return;
  }
  Mark(round, place.index);
  if (!gathers()) return Gather(out);
  if (!IsLastWith(round, header.chunk)) PassMean(header, place.values, out);
}

bool RingSyncer::IsLastWith(const Round& round, uint32_t segment) const {
  return segment != static_cast<uint32_t>(Around(round, 1)) &&
         segment == static_cast<uint32_t>(Around(round, 2));
}

void RingSyncer::GatherOwn(Outbox& out) {
  const Round& round = RoundAt(next_round());
  if (round.contributors == 1) return;
  for (int count = 0; count < round.contributors; ++count) {
    const int index = Around(round, count);
    if (IsLastWith(round, index)) continue;
    ForFrames(round, FrameKind::kMean, index, round.memory[0],
              [&](const Frame& frame) {
                const Place place = *FindPlace(frame.header, round);
                if (!round.arrived[place.index]) return;
                PassMean(frame.header, place.values, out);
              });
  }
}

void RingSyncer::SendMemory(const Round& round, PeerId to, Outbox& out) const {
  for (int index = 0; index < round.contributors; ++index) {
    ForFrames(round, FrameKind::kMean, index, round.memory[0],
              [&](Frame frame) {
                out.Add(SendFrame{to, std::move(frame)});
              });
  }
}

Buffer RingSyncer::TakeMean(const Round& round, Outbox& out) {
  if (updates_here() || !memory_.means_in_place) return round.memory[0];
  out.Add(CopyValues{gradient_, round.memory[0]});
  return Buffer();
}

// A worker that has not pushed stops every sum that comes to it, so the sums of
// all behind it arrive, and its own does not.
std::vector<std::string> RingSyncer::MissingPeers(const Round& round) const {
  const std::vector<bool>& sums = SumsOf(round.round);
  for (int count = round.contributors - 1; count > 0; --count) {
    const int index = Around(round, count);
    bool complete = true;
    ForFrames(round, FrameKind::kSum, index, round.memory[0],
              [&](const Frame& frame) {
                complete =
                    complete && sums[FindPlace(frame.header, round)->index];
              });
    if (complete) continue;
    return {job_->NameOf(PeerId::Worker(job_->workers[index].rank))};
  }
  const int before = Around(round, round.contributors - 1);
  return {job_->NameOf(PeerId::Worker(job_->workers[before].rank))};
}

}  // namespace nereus
