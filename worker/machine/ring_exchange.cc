// Exchange around a ring: all-reduce in two passes (Patarasuk and Yuan,
// "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC
// 2009).
//
// Nomenclature: H hosts take part, with the numbers 0 to H - 1 of the line-up;
// host h sends to host h + 1 only, modulo H. The layer is cut into H segments
// (RingSegments), and segment s starts its way at host s. The part of a host is
// the sum of its workers' gradients.
//
//   1. Reduce-scatter (frames kSum). Host s sends its part of segment s. Each
//      host on the way adds its own part and sends the sum on. After H - 1 hops
//      the sum is complete on host s - 1, which divides it by the number of
//      workers.
//   2. All-gather (frames kMean). Host s - 1 sends the mean to host s, and each
//      host sends it on, until host s - 2 has it.
//
// In a round each host sends 2 * (H - 1) / H times the layer: less than twice
// the layer, however many hosts there are. Each frame has one carrier on every
// host (LocalHalf). The carrier adds up the host's part, receives the frame
// from the carrier on the host before, sends it to the carrier on the next
// host, and hands the mean on to its mates. The workers of a host carry its
// frames in turn, so they share the work. With one host the carrier makes the
// mean from the host's part, and no frame goes around the ring.
//
// Unlike in the textbook, hosts do not go in lockstep: every frame (256 KiB)
// travels on its own as soon as it arrives, so a large segment keeps all links
// busy. A sum that arrives before the host's part waits in the round's memory.
//
// In a sparse layer each frame is a block, and block b belongs to segment
// b % H.
//
// Read Contribute, OnHostPart, PassSum and PassMean first: they are the
// algorithm.

#include "worker/machine/ring_exchange.h"

#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/machine/float_bytes.h"

namespace nereus {
namespace {

PeerRounds::Shape ShapeOf(const WorkerLayer& layer, const Lineup& lineup) {
  PeerRounds::Shape shape;
  shape.elements = {layer.spec().parameters};
  shape.frames = RingFrames(layer, lineup.hosts()).count();
  shape.sums = shape.frames;
  return shape;
}

}  // namespace

RingExchange::RingExchange(const WorkerLayer& layer, const RoundLedger& ledger)
    : AllReduce(layer, ledger, [&layer](const Lineup& lineup) {
        return ShapeOf(layer, lineup);
      }) {}

// The ring.

int RingExchange::After(const Round& round, int count) const {
  return (round.host + count) % round.lineup.hosts();
}

bool RingExchange::IsLastWith(const Round& round, int segment) const {
  return segment != After(round, 1) && segment == After(round, 2);
}

void RingExchange::SendToNext(const Round& round, int64_t index, Frame frame,
                              Outbox& out) const {
  const int32_t next = CarrierOn(round, After(round, 1), index);
  out.Add(SendFrame{PeerId::Worker(next), std::move(frame)});
}

// The two passes.

// Goes through the segments in the order in which this host needs its part:
// first the segment that starts here, then those whose sums arrive from the
// hosts before, in the order of their arrival.
void RingExchange::Contribute(Outbox& out) {
  Round* const round = rounds_.PrepareToSend();
  if (round == nullptr) return;
  const RingFrames frames = FramesOf(*round);
  const int hosts = round->lineup.hosts();
  for (int count = 0; count < hosts; ++count) {
    frames.ForSegment(After(*round, hosts - count), [&](int64_t index) {
      if (Travels(*round, index)) ContributeFrame(*round, index, out);
    });
  }
}

void RingExchange::SendPart(Round& round, int64_t index, Outbox& out) {
  if (FramesOf(round).SegmentOf(index) != round.host) {
    if (round.sums[index]) PassSum(round, index, out);
    return;
  }
  SendToNext(round, index,
             {HeaderOf(round, FrameKind::kSum, index),
              IsAlone(round) ? OwnValues(round, index)
                             : HostPart(round, index).payload},
             out);
}

void RingExchange::PassSum(Round& round, int64_t index, Outbox& out) {
  const int segment = FramesOf(round).SegmentOf(index);
  const Buffer values = MemoryOf(round, index);
  const bool is_last = segment == After(round, 1);
  const absl::Span<const int32_t> before = round.lineup.at(Before(round));
  if (segment == Before(round) && before.size() == 1 &&
      layer_.job->checks_contributions()) {
    out.Add(CheckValues{values, CheckOf(round, before.front(), index)});
  }
  out.Add(Accumulate{
      values, HostPart(round, index), /*replaces=*/false,
      is_last ? 1.0f / static_cast<float>(round.contributors) : 1.0f});
  if (is_last) return OnMean(round, index, out);
  SendToNext(round, index, {HeaderOf(round, FrameKind::kSum, index), values},
             out);
}

void RingExchange::PassMean(const Round& round, int64_t index, Outbox& out) {
  const FrameHeader header = HeaderOf(round, FrameKind::kMean, index);
  const Buffer values = MemoryOf(round, index);
  if (!IsAlone(round)) local_.HandOn(header, values, out);
  const int segment = FramesOf(round).SegmentOf(index);
  if (round.lineup.hosts() == 1 || IsLastWith(round, segment)) return;
  SendToNext(round, index, {header, values}, out);
}

// Frames.

absl::StatusOr<Landing> RingExchange::OnHeader(
    const FrameHeader& header) const {
  if (PeerRounds::IsRecovery(header.kind)) {
    return rounds_.OnRecoveryHeader(header);
  }
  const bool is_part = header.kind == FrameKind::kLocal;
  if (!is_part && header.kind != FrameKind::kSum &&
      header.kind != FrameKind::kMean && header.kind != FrameKind::kOutcome) {
    return RefuseScheme(layer_, header);
  }
  NEREUS_TRY(rounds_.Check(header));
  if (rounds_.IsPast(header)) return Landing::Discard();
  const Round& round = rounds_.At(header.round);
  const int64_t index = NEREUS_TRY(FramesOf(round).Find(header));
  if (!is_part) NEREUS_TRY(CheckOnRing(header, round, index));
  if (round.sent && !Travels(round, index)) {
    return RefuseFrame(header, "that block does not travel in this round");
  }
  if (is_part) return local_.OnLocalHeader(header, index, index);
  const bool is_repeated = header.kind == FrameKind::kSum
                               ? round.sums[index]
                               : round.frames.Has(index);
  return is_repeated ? Landing::Discard() : Landing::At(MemoryOf(round, index));
}

absl::Status RingExchange::CheckOnRing(const FrameHeader& header,
                                       const Round& round,
                                       int64_t index) const {
  const bool is_handed_on = header.kind == FrameKind::kOutcome;
  NEREUS_TRY(CheckCarriers(header, round,
                           is_handed_on ? round.host : Before(round), index));
  const int segment = FramesOf(round).SegmentOf(index);
  if (header.kind == FrameKind::kSum) {
    if (segment != round.host) return absl::OkStatus();
    return RefuseFrame(header, "the sum of that segment begins with this host");
  }
  NEREUS_TRY(CheckMean(header, round));
  if (is_handed_on || segment != After(round, 1)) return absl::OkStatus();
  return RefuseFrame(header, "this host makes the mean of that segment");
}

void RingExchange::OnFrame(const Frame& frame, Outbox& out) {
  const FrameHeader& header = frame.header;
  if (PeerRounds::IsRecovery(header.kind)) {
    return rounds_.OnRecoveryFrame(frame, out);
  }
  Round& round = rounds_.At(header.round);
  const int64_t index = *FramesOf(round).Find(header);
  if (header.kind == FrameKind::kLocal) {
    return AddLocal(frame, round, index, out);
  }
  if (header.kind == FrameKind::kSum) {
    round.sums[index] = true;
    if (HasPart(round, index)) PassSum(round, index, out);
    return;
  }
  round.frames.Mark(index);
  if (header.kind == FrameKind::kMean) PassMean(round, index, out);
}

// Names the workers that hold up the first missing frame: a carrier names the
// mates whose parts it lacks, or else the carrier of the host whose sum it
// lacks; a mate names the carrier on this host.
//
// A host that lacks a part starts no sum, and sends on no sum that reaches it.
// Sums that start on hosts between that host and this one still arrive. So the
// loop goes against the direction of the ring, from this host on: the first
// host whose sum is missing is the one that lacks a part.
std::string RingExchange::Missing() const {
  return rounds_.Missing([this](const Round& round) {
    std::vector<int32_t> ranks;
    const RingFrames frames = FramesOf(round);
    for (int count = round.lineup.hosts(); count > 0 && ranks.empty();
         --count) {
      const int host = After(round, count);
      frames.ForSegment(host, [&](int64_t index) {
        if (!ranks.empty() || !Travels(round, index)) return;
        if (!Carries(round, index)) {
          if (!round.frames.Has(index)) {
            ranks.push_back(CarrierOn(round, round.host, index));
          }
          return;
        }
        if (!IsAlone(round)) ranks = local_.MissingOf(round.round, index);
        if (ranks.empty() && host != round.host && !round.sums[index]) {
          ranks.push_back(CarrierOn(round, host, index));
        }
      });
    }
    if (ranks.empty()) {
      ranks.push_back(round.lineup.at(Before(round)).front());
    }
    return ranks;
  });
}

}  // namespace nereus
