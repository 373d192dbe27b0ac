// Exchange around a ring: all-reduce in two passes (Patarasuk and Yuan,
// "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC
// 2009).
//
// Nomenclature: W workers take part, at positions 0 to W - 1; worker p sends to
// worker p + 1 only, modulo W. The layer is cut into W segments
// (RingSegments), and segment s starts its way at worker s.
//
//   1. Reduce-scatter (frames kSum). Worker s sends its gradient of segment s.
//      Each worker on the way adds its own gradient and sends the sum on. After
//      W - 1 hops the sum is complete on worker s - 1, which divides it by W.
//   2. All-gather (frames kMean). Worker s - 1 sends the mean to worker s, and
//      each worker sends it on, until worker s - 2 has it.
//
// Each worker sends 2 * (W - 1) / W of the layer, whatever W is. Unlike in the
// textbook, workers do not go in lockstep: every frame (256 KiB) travels on its
// own as soon as it arrives, so a large segment keeps all links busy. A sum
// that arrives before the own gradient waits in the round's memory.
//
// With Overlap::kDecoupled the second pass starts when a worker gathers the
// layer. A mean that arrives tells the next worker to gather as well. In a
// sparse layer each frame is a block, and block b belongs to segment b % W.
//
// Read Contribute, PassSum, PassMean and Gather first: they are the algorithm.
// The rest finds the places of frames.

#include "worker/machine/ring_exchange.h"

#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/machine/float_bytes.h"

namespace nereus {
namespace {

PeerRounds::Shape ShapeOf(const WorkerLayer& layer, const Lineup& lineup) {
  const int64_t elements = layer.spec().parameters;
  PeerRounds::Shape shape;
  shape.elements = {elements};
  if (layer.sparse.has_value()) {
    shape.frames = layer.sparse->grid().Count() + 1;
    return shape;
  }
  const RingSegments segments(elements, lineup.workers());
  const int64_t full = segments.full_count();
  shape.frames = full * FrameCount(segments.full_length()) +
                 FrameCount(elements - full * segments.full_length());
  return shape;
}

}  // namespace

RingExchange::RingExchange(const WorkerLayer& layer, const RoundLedger& ledger)
    : layer_(layer),
      ledger_(ledger),
      rounds_(layer, ledger, [&layer](const Lineup& lineup) {
        return ShapeOf(layer, lineup);
      }) {}

int RingExchange::After(const Round& round, int count) const {
  return (layer_.position() + count) % round.contributors;
}

void RingExchange::SendToNext(Frame frame, Outbox& out) const {
  const int next = After(rounds_.At(frame.header.round), 1);
  out.Add(SendFrame{PeerId::Worker(layer_.job->workers[next].rank),
                    std::move(frame)});
}

// Sends the own segment, and passes on the sums of workers that were faster.
void RingExchange::Contribute(Outbox& out) {
  Round* const round = rounds_.PrepareToSend();
  if (round == nullptr) return;
  const int own_segment = layer_.position();
  const bool is_alone = round->contributors == 1;
  ForFrames(*round, FrameKind::kSum, own_segment, round->memory[0],
            [&](const Frame& frame) {
              if (!is_alone) {
                return SendToNext(
                    {frame.header, OwnValues(*round, frame.header)}, out);
              }
              out.Add(Accumulate{frame.payload, OwnAddend(*round, frame.header),
                                 /*replaces=*/true});
              out.Add(RoundValues{frame.payload, layer_.route().wire});
              round->Mark(FindPlace(frame.header, *round)->index);
            });
  for (int count = 1; count < round->contributors; ++count) {
    ForFrames(*round, FrameKind::kSum, After(*round, count), round->memory[0],
              [&](const Frame& frame) {
                const int64_t index = FindPlace(frame.header, *round)->index;
                if (round->sums[index]) PassSum(frame.header, out);
              });
  }
}

void RingExchange::PassSum(const FrameHeader& header, Outbox& out) {
  Round& round = rounds_.At(header.round);
  const Place place = *FindPlace(header, round);
  FrameHeader sum = header;
  sum.sender = PeerId::Worker(layer_.rank);
  sum.payload_crc = 0;  // The values change.
  const bool is_last = static_cast<int>(header.chunk) == After(round, 1);
  if (static_cast<int>(header.chunk) == Before(round) &&
      layer_.job->checks_contributions()) {
    out.Add(CheckValues{place.values,
                        ContributionCheck(round, Before(round), header)});
  }
  out.Add(Accumulate{
      place.values, OwnAddend(round, header), /*replaces=*/false,
      is_last ? 1.0f / static_cast<float>(round.contributors) : 1.0f});
  if (!is_last) return SendToNext({sum, place.values}, out);
  // This worker keeps the mean as the wire rounds it for the others.
  out.Add(RoundValues{place.values, layer_.route().wire});
  round.Mark(place.index);
  if (ledger_.is_requested()) PassMean(sum, place.values, out);
}

void RingExchange::PassMean(const FrameHeader& header, Buffer values,
                            Outbox& out) const {
  FrameHeader mean = header;
  mean.kind = FrameKind::kMean;
  mean.sender = PeerId::Worker(layer_.rank);
  SendToNext({mean, std::move(values)}, out);
}

// Sends on the means that arrived or were made before this worker gathered.
void RingExchange::Gather(Outbox& out) {
  const Round& round = rounds_.At(ledger_.next_round());
  if (!round.sent || round.contributors == 1) return;
  for (int count = 0; count < round.contributors; ++count) {
    const int segment = After(round, count);
    if (IsLastWith(round, segment)) continue;
    ForFrames(round, FrameKind::kMean, segment, round.memory[0],
              [&](const Frame& frame) {
                const Place place = *FindPlace(frame.header, round);
                if (!round.arrived[place.index]) return;
                PassMean(frame.header, place.values, out);
              });
  }
}

bool RingExchange::IsLastWith(const Round& round, uint32_t segment) const {
  return segment != static_cast<uint32_t>(After(round, 1)) &&
         segment == static_cast<uint32_t>(After(round, 2));
}

GradientCheck RingExchange::ContributionCheck(const Round& round, int position,
                                              const FrameHeader& header) const {
  return {layer_.index, round.round, layer_.job->workers[position].rank,
          OffsetOf(round, header)};
}

Addend RingExchange::OwnAddend(const Round& round,
                               const FrameHeader& header) const {
  Addend own(OwnValues(round, header));
  if (layer_.job->checks_contributions()) {
    own.check = ContributionCheck(round, layer_.position(), header);
  }
  return own;
}

absl::StatusOr<Landing> RingExchange::OnHeader(
    const FrameHeader& header) const {
  if (header.kind == FrameKind::kPullRound) return rounds_.OnPullHeader(header);
  const bool is_sum = header.kind == FrameKind::kSum;
  if (!is_sum && header.kind != FrameKind::kMean) {
    return RefuseScheme(layer_, header);
  }
  NEREUS_TRY(rounds_.Check(header, FrameKind::kMean));
  if (rounds_.IsPast(header)) return Landing::Discard();
  const Round& round = rounds_.At(header.round);
  const Place place = NEREUS_TRY(FindPlace(header, round));
  if (!rounds_.Recovers(header.round)) {
    NEREUS_TRY(CheckOnRing(header, round));
    if (layer_.sparse.has_value() && round.sent && !round.chosen[place.index]) {
      return RefuseFrame(header, "that block does not travel in this round");
    }
  }
  const bool is_repeated =
      is_sum ? round.sums[place.index] : round.arrived[place.index];
  return is_repeated ? Landing::Discard() : Landing::At(place.values);
}

absl::Status RingExchange::CheckOnRing(const FrameHeader& header,
                                       const Round& round) const {
  const int rank_before = layer_.job->workers[Before(round)].rank;
  if (header.sender.rank != rank_before) {
    return RefuseFrame(header, "worker ", rank_before,
                       " comes before this one on the "
                       "ring");
  }
  const auto segment = static_cast<int>(header.chunk);
  if (header.kind == FrameKind::kSum) {
    if (segment != layer_.position()) return absl::OkStatus();
    return RefuseFrame(header,
                       "the sum of that segment begins with this worker");
  }
  if (!round.sent || header.round != ledger_.next_round()) {
    return RefuseFrame(header, "the mean lacks the gradient of this worker");
  }
  if (segment != After(round, 1)) return absl::OkStatus();
  return RefuseFrame(header, "this worker makes the mean of that segment");
}

bool RingExchange::OnFrame(const FrameHeader& header, Outbox& out) {
  if (header.kind == FrameKind::kPullRound) {
    SendMemory(rounds_.OnPull(header), header.sender, out);
    return false;
  }
  Round& round = rounds_.At(header.round);
  const Place place = *FindPlace(header, round);
  if (header.kind == FrameKind::kSum) {
    round.sums[place.index] = true;
    if (round.sent) PassSum(header, out);
    return false;
  }
  round.Mark(place.index);
  if (rounds_.Recovers(header.round)) return false;
  if (!ledger_.is_requested()) return true;  // Gather passes the mean on.
  if (!IsLastWith(round, header.chunk)) PassMean(header, place.values, out);
  return false;
}

std::optional<RoundResult> RingExchange::Finish(Outbox& out) {
  if (!rounds_.IsComplete()) return std::nullopt;
  Buffer mean;
  if (!rounds_.IsSkipped()) {
    mean = rounds_.At(ledger_.next_round()).memory[0];
    if (layer_.caller_updates() && layer_.memory.means_in_place) {
      out.Add(CopyValues{layer_.gradient, std::exchange(mean, Buffer())});
    }
  }
  return rounds_.Finish(std::move(mean), out);
}

template <typename Each>
void RingExchange::ForFrames(const Round& round, FrameKind kind, int64_t index,
                             const Buffer& values, Each each) const {
  const Job& job = *layer_.job;
  FrameHeader header = layer_.Header(kind, index, round.round);
  if (!layer_.sparse.has_value()) {
    const RingSegments segments = SegmentsOf(round);
    CutIntoFrames(job, header,
                  values.Slice(FloatBytes(segments.Offset(index)),
                               FloatBytes(segments.Length(index))),
                  each);
    return;
  }
  const FrameGrid& grid = layer_.sparse->grid();
  const auto frames = std::ssize(round.chosen);
  for (int64_t frame = 0; frame < frames; ++frame) {
    if (!round.chosen[frame] || SegmentOfSparse(round, frame) != index) {
      continue;
    }
    if (frame < grid.Count()) {
      each(CutFrame(job, header, grid, frame, values));
    } else {  // The frame that says that no block travels.
      header.wire = job.WireOf(header);
      each(Frame{header, Buffer()});
    }
  }
}

int64_t RingExchange::OffsetOf(const Round& round,
                               const FrameHeader& header) const {
  if (layer_.sparse.has_value()) return header.offset;
  return header.offset + SegmentsOf(round).Offset(header.chunk);
}

Buffer RingExchange::OwnValues(const Round& round,
                               const FrameHeader& header) const {
  const int64_t offset = OffsetOf(round, header);
  const int64_t bytes = FloatBytes(header);
  return layer_.sparse.has_value()
             ? layer_.sparse->Contribution(offset, bytes / FloatBytes(1))
             : layer_.gradient.Slice(FloatBytes(offset), bytes);
}

absl::StatusOr<RingExchange::Place> RingExchange::FindPlace(
    const FrameHeader& header, const Round& round) const {
  if (header.part != kValuesPart) {
    return RefuseFrame(header, "the part must be 0");
  }
  if (header.chunk >= static_cast<uint32_t>(round.contributors)) {
    return RefuseFrame(header, "the ring has ", round.contributors,
                       " segments");
  }
  int64_t frame = 0;
  if (layer_.sparse.has_value()) {
    frame = NEREUS_TRY(FindSparseFrame(header, round));
  } else {
    const RingSegments segments = SegmentsOf(round);
    frame = NEREUS_TRY(
        FrameIndex(header, FrameGrid(segments.Length(header.chunk))));
    frame += header.chunk * FrameCount(segments.full_length());
  }
  return Place{frame, round.memory[0].Slice(FloatBytes(OffsetOf(round, header)),
                                            FloatBytes(header))};
}

absl::StatusOr<int64_t> RingExchange::FindSparseFrame(
    const FrameHeader& header, const Round& round) const {
  const FrameGrid& grid = layer_.sparse->grid();
  int64_t frame = grid.Count();
  if (header.payload_bytes > 0 || header.offset > 0) {
    frame = NEREUS_TRY(FrameIndex(header, grid));
  }
  const int64_t segment = SegmentOfSparse(round, frame);
  if (segment == header.chunk) return frame;
  return RefuseFrame(header, "that block's segment is ", segment);
}

void RingExchange::SendMemory(const Round& round, PeerId to,
                              Outbox& out) const {
  for (int index = 0; index < round.contributors; ++index) {
    ForFrames(round, FrameKind::kMean, index, round.memory[0],
              [&](Frame frame) {
                out.Add(SendFrame{to, std::move(frame)});
              });
  }
}

// A worker that has not pushed stops every sum that reaches it. So the sums
// that start behind it arrive here, and the sum that it starts does not. Going
// backwards, the first worker with a missing sum is the worker to name.
std::string RingExchange::Missing() const {
  return rounds_.Missing([this](const Round& round) {
    for (int count = round.contributors - 1; count > 0; --count) {
      const int position = After(round, count);
      bool is_complete = true;
      ForFrames(round, FrameKind::kSum, position, round.memory[0],
                [&](const Frame& frame) {
                  const int64_t index = FindPlace(frame.header, round)->index;
                  is_complete = is_complete && round.sums[index];
                });
      if (!is_complete) return std::vector<int>{position};
    }
    return std::vector<int>{Before(round)};
  });
}

}  // namespace nereus
