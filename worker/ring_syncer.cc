#include "worker/ring_syncer.h"

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
  if (round.contributors == 1) {
    out.Add(CopyValues{round.memory[0], gradient_});
    out.Add(RoundValues{round.memory[0], wire()});
    round.arrived.assign(round.arrived.size(), true);
    round.missing = 0;
    return;
  }
  ForFrames(round, FrameKind::kSum, position(), gradient_,
            [&](Frame frame) { SendToNext(std::move(frame), out); });
  // Those who were faster have sent theirs.
  for (int count = 1; count < round.contributors; ++count) {
    ForFrames(round, FrameKind::kSum, Around(round, count), round.memory[0],
              [&](const Frame& frame) {
                const int64_t place = FindPlace(frame.header, round)->index;
                if (SumsOf(round.round)[place]) PassSum(frame.header, out);
              });
  }
}

void RingSyncer::PassSum(const FrameHeader& header, Outbox& out) {
  Round& round = RoundAt(header.round);
  const Place place = *FindPlace(header, round);
  const int64_t offset = SegmentsOf(round).Offset(header.chunk) + header.offset;
  FrameHeader sum = header;
  sum.sender = PeerId::Worker(rank_);
  sum.payload_crc = 0;  // The values change.
  out.Add(AddValues{place.values,
                    gradient_.Slice(BytesOf(offset), FloatBytes(header))});
  if (static_cast<int>(header.chunk) == Around(round, 1)) {
    out.Add(ScaleValues{place.values,
                        1.0f / static_cast<float>(round.contributors)});
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
  const RingSegments segments = SegmentsOf(round);
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame,
                          FrameIndex(header, segments.Length(header.chunk)));
  const int64_t offset = segments.Offset(header.chunk) + header.offset;
  return Place{header.chunk * FrameCount(segments.full_length()) + frame,
               round.memory[0].Slice(BytesOf(offset), FloatBytes(header))};
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
  if (updates_here()) return round.memory[0];
  out.Add(CopyValues{gradient_, round.memory[0]});
  return gradient_;
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
    return {PeerName(PeerId::Worker(job_->workers[index].rank))};
  }
  const int before = Around(round, round.contributors - 1);
  return {PeerName(PeerId::Worker(job_->workers[before].rank))};
}

}  // namespace nereus
