#include "worker/machine/direct_exchange.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/machine/float_bytes.h"

namespace nereus {
namespace {

PeerRounds::Shape ShapeOf(const WorkerLayer& layer, const Lineup& lineup) {
  PeerRounds::Shape shape;
  shape.elements = {layer.spec().parameters};
  shape.frames = RingFrames(layer, /*hosts=*/1).count();
  if (lineup.hosts() > 1) {
    shape.sums = lineup.hosts() * shape.frames;
    shape.sum_elements = lineup.hosts() * layer.spec().parameters;
  }
  return shape;
}

}  // namespace

DirectExchange::DirectExchange(const WorkerLayer& layer,
                               const RoundLedger& ledger)
    : AllReduce(layer, ledger, [&layer](const Lineup& lineup) {
        return ShapeOf(layer, lineup);
      }) {}

void DirectExchange::Contribute(Outbox& out) {
  Round* const round = rounds_.PrepareToSend();
  if (round == nullptr) return;
  for (int64_t index = 0; index < FramesOf(*round).count(); ++index) {
    if (Travels(*round, index)) ContributeFrame(*round, index, out);
  }
}

// The copy is rounded to the wire type, so that this worker has the same bits
// as the workers that receive the part.
void DirectExchange::SendPart(Round& round, int64_t index, Outbox& out) {
  const Buffer part = PartOf(round, round.host, index);
  out.Add(Accumulate{part, HostPart(round, index), /*replaces=*/true});
  out.Add(RoundValues{part, layer_.route().wire});
  FrameHeader header = HeaderOf(round, FrameKind::kSum, index);
  header.chunk = static_cast<uint32_t>(round.host);
  auto carriers = std::make_shared<std::vector<int32_t>>();
  for (int host = 0; host < round.lineup.hosts(); ++host) {
    if (host == round.host) continue;
    carriers->push_back(CarrierOn(round, host, index));
  }
  out.Add(BroadcastFrame{std::move(carriers), {header, part}});
  OnPart(round, round.host, index, out);
}

void DirectExchange::OnPart(Round& round, int host, int64_t index,
                            Outbox& out) {
  round.sums[PartIndex(round, host, index)] = true;
  const int hosts = round.lineup.hosts();
  for (int each = 0; each < hosts; ++each) {
    if (!HasPartOf(round, each, index)) return;
  }
  const Buffer mean = MemoryOf(round, index);
  const float factor = 1.0f / static_cast<float>(round.contributors);
  for (int each = 0; each < hosts; ++each) {
    out.Add(Accumulate{mean, Addend(PartOf(round, each, index)),
                       /*replaces=*/each == 0,
                       each == hosts - 1 ? factor : 1.0f});
  }
  OnMean(round, index, out);
}

void DirectExchange::PassMean(const Round& round, int64_t index, Outbox& out) {
  if (IsAlone(round)) return;
  local_.HandOn(HeaderOf(round, FrameKind::kMean, index),
                MemoryOf(round, index), out);
}

absl::StatusOr<int64_t> DirectExchange::Find(const FrameHeader& header,
                                             const Round& round) const {
  FrameHeader of_layer = header;
  if (header.kind == FrameKind::kSum) {
    of_layer.chunk = 0;
    const int hosts = round.lineup.hosts();
    if (hosts == 1 || header.chunk >= static_cast<uint32_t>(hosts) ||
        static_cast<int>(header.chunk) == round.host) {
      return RefuseFrame(header, "the round has ", hosts,
                         " hosts, and this one is number ", round.host);
    }
  }
  return FramesOf(round).Find(of_layer);
}

absl::StatusOr<Landing> DirectExchange::OnHeader(
    const FrameHeader& header) const {
  if (PeerRounds::IsRecovery(header.kind)) {
    return rounds_.OnRecoveryHeader(header);
  }
  if (header.kind != FrameKind::kLocal && header.kind != FrameKind::kSum &&
      header.kind != FrameKind::kOutcome) {
    return RefuseScheme(layer_, header);
  }
  NEREUS_TRY(rounds_.Check(header));
  if (rounds_.IsPast(header)) return Landing::Discard();
  const Round& round = rounds_.At(header.round);
  const int64_t index = NEREUS_TRY(Find(header, round));
  if (header.kind != FrameKind::kLocal) {
    NEREUS_TRY(CheckSender(header, round, index));
  }
  if (round.sent && !Travels(round, index)) {
    return RefuseFrame(header, "that block does not travel in this round");
  }
  if (header.kind == FrameKind::kLocal) {
    return local_.OnLocalHeader(header, index, index);
  }
  if (header.kind == FrameKind::kOutcome) {
    return round.frames.Has(index) ? Landing::Discard()
                                   : Landing::At(MemoryOf(round, index));
  }
  const auto host = static_cast<int>(header.chunk);
  return HasPartOf(round, host, index)
             ? Landing::Discard()
             : Landing::At(PartOf(round, host, index));
}

absl::Status DirectExchange::CheckSender(const FrameHeader& header,
                                         const Round& round,
                                         int64_t index) const {
  if (header.kind == FrameKind::kSum) {
    return CheckCarriers(header, round, static_cast<int>(header.chunk), index);
  }
  NEREUS_TRY(CheckCarriers(header, round, round.host, index));
  return CheckMean(header, round);
}

void DirectExchange::OnFrame(const Frame& frame, Outbox& out) {
  const FrameHeader& header = frame.header;
  if (PeerRounds::IsRecovery(header.kind)) {
    return rounds_.OnRecoveryFrame(frame, out);
  }
  Round& round = rounds_.At(header.round);
  const int64_t index = *Find(header, round);
  if (header.kind == FrameKind::kLocal) {
    return AddLocal(frame, round, index, out);
  }
  if (header.kind == FrameKind::kSum) {
    return OnPart(round, static_cast<int>(header.chunk), index, out);
  }
  round.frames.Mark(index);
}

Buffer DirectExchange::PartOf(const Round& round, int host,
                              int64_t index) const {
  const RingFrames frames = FramesOf(round);
  return round.sum_memory.Slice(
      FloatBytes(host * layer_.spec().parameters + frames.OffsetOf(index)),
      FloatBytes(frames.LengthOf(index)));
}

// Names the workers that hold up the first missing frame: a mate names the
// carrier on this host; a carrier names the mates whose parts it lacks, or else
// the carriers on the hosts whose parts it lacks.
std::string DirectExchange::Missing() const {
  return rounds_.Missing([this](const Round& round) {
    std::vector<int32_t> ranks;
    const int64_t count = FramesOf(round).count();
    for (int64_t index = 0; index < count && ranks.empty(); ++index) {
      if (!Travels(round, index) || round.frames.Has(index)) continue;
      if (!Carries(round, index)) {
        ranks.push_back(CarrierOn(round, round.host, index));
        continue;
      }
      if (!IsAlone(round)) ranks = local_.MissingOf(round.round, index);
      if (!ranks.empty() || round.lineup.hosts() == 1) continue;
      for (int host = 0; host < round.lineup.hosts(); ++host) {
        if (host == round.host || HasPartOf(round, host, index)) continue;
        ranks.push_back(CarrierOn(round, host, index));
      }
    }
    return ranks;
  });
}

}  // namespace nereus
