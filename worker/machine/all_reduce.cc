#include "worker/machine/all_reduce.h"

#include <utility>

#include "common/base/status.h"
#include "worker/machine/float_bytes.h"

namespace nereus {

AllReduce::AllReduce(
    const WorkerLayer& layer, const RoundLedger& ledger,
    const std::function<PeerRounds::Shape(const Lineup&)>& shape_of)
    : layer_(layer),
      ledger_(ledger),
      rounds_(layer, ledger, shape_of),
      local_(layer, ledger, [shape_of](const Lineup& lineup) {
        return shape_of(lineup).frames;
      }) {}

void AllReduce::ContributeFrame(Round& round, int64_t index, Outbox& out) {
  if (IsAlone(round)) return OnHostPart(round, index, out);
  if (Carries(round, index)) {
    Addend own(OwnValues(round, index));
    own.stays = true;
    const bool is_dense =
        AddPart(layer_.rank, round, index, std::move(own), out);
    if (is_dense) OnHostPart(round, index, out);
    return;
  }
  out.Add(SendFrame{
      PeerId::Worker(CarrierOn(round, round.host, index)),
      {HeaderOf(round, FrameKind::kLocal, index), OwnValues(round, index)}});
}

void AllReduce::AddLocal(const Frame& frame, Round& round, int64_t index,
                         Outbox& out) {
  const bool is_dense =
      AddPart(frame.header.sender.rank, round, index, Addend(frame), out);
  if (is_dense) OnHostPart(round, index, out);
}

// With one host, the parts are added in the round's memory: no sum of another
// host lands there.
bool AllReduce::AddPart(int rank, const Round& round, int64_t index,
                        Addend addend, Outbox& out) {
  const Buffer memory = MemoryOf(round, index);
  const bool is_mean = round.lineup.hosts() == 1;
  const Buffer place =
      is_mean ? memory : local_.SumOf(round.round, index, memory.bytes());
  const float factor =
      is_mean ? 1.0f / static_cast<float>(round.contributors) : 1.0f;
  return local_.Add(rank, round.round, index, FramesOf(round).OffsetOf(index),
                    place, std::move(addend), factor, out);
}

// Elsewhere the mean must stay when the caller has its gradient back: until the
// next push, or, on a GPU, until an update of the job has copied it.
bool AllReduce::KeepsGradient(const Round& round) const {
  return round.contributors == 1 && !rounds_.Recovers(round.round) &&
         !layer_.sparse.has_value() && layer_.caller_updates() &&
         layer_.memory.means_in_place;
}

void AllReduce::OnHostPart(Round& round, int64_t index, Outbox& out) {
  if (round.lineup.hosts() > 1) return SendPart(round, index, out);
  if (KeepsGradient(round)) {
    if (layer_.job->checks_contributions()) {
      out.Add(CheckValues{OwnValues(round, index),
                          CheckOf(round, layer_.rank, index)});
    }
    round.frames.Mark(index);
    return;
  }
  if (IsAlone(round)) {
    out.Add(Accumulate{MemoryOf(round, index), HostPart(round, index),
                       /*replaces=*/true});
  }
  OnMean(round, index, out);
}

// Rounds the mean to the wire type, so that this worker has the same bits as
// the workers that receive the mean.
void AllReduce::OnMean(Round& round, int64_t index, Outbox& out) {
  out.Add(RoundValues{MemoryOf(round, index), layer_.route().wire});
  round.frames.Mark(index);
  PassMean(round, index, out);
}

// If a host has several workers, AddPart has checked their values for NaNs.
Addend AllReduce::HostPart(const Round& round, int64_t index) {
  if (!IsAlone(round)) {
    return Addend(
        local_.SumOf(round.round, index, MemoryOf(round, index).bytes()));
  }
  Addend own(OwnValues(round, index));
  if (layer_.job->checks_contributions()) {
    own.check = CheckOf(round, layer_.rank, index);
  }
  return own;
}

absl::Status AllReduce::CheckCarriers(const FrameHeader& header,
                                      const Round& round, int from,
                                      int64_t index) const {
  const bool is_handed_on = from == round.host;
  const int32_t sender = CarrierOn(round, from, index);
  if (header.sender.rank == sender && Carries(round, index) != is_handed_on) {
    return absl::OkStatus();
  }
  return RefuseFrame(header, "the frame must come from worker ", sender,
                     ", and worker ", CarrierOn(round, round.host, index),
                     " is its carrier on this host");
}

absl::Status AllReduce::CheckMean(const FrameHeader& header,
                                  const Round& round) const {
  if (round.sent && header.round == ledger_.next_round()) {
    return absl::OkStatus();
  }
  return RefuseFrame(header, "the mean lacks the gradient of this worker");
}

std::optional<RoundResult> AllReduce::Finish(Outbox& out) {
  if (!rounds_.IsComplete()) return std::nullopt;
  const Round& round = rounds_.At(ledger_.next_round());
  if (rounds_.IsSkipped() || KeepsGradient(round)) {
    return rounds_.Finish(Buffer(), out);
  }
  Buffer mean = round.memory[0];
  if (layer_.caller_updates() && layer_.memory.means_in_place) {
    out.Add(CopyValues{layer_.gradient, std::exchange(mean, Buffer())});
  }
  return rounds_.Finish(std::move(mean), out);
}

void AllReduce::OnEpoch(Outbox& out) {
  rounds_.OnEpoch(out);
  local_.OnEpoch();
}

FrameHeader AllReduce::HeaderOf(const Round& round, FrameKind kind,
                                int64_t index) const {
  return FramesOf(round).Cut(layer_.Header(kind, /*chunk=*/0, round.round),
                             index);
}

Buffer AllReduce::MemoryOf(const Round& round, int64_t index) const {
  const RingFrames frames = FramesOf(round);
  return round.memory[0].Slice(FloatBytes(frames.OffsetOf(index)),
                               FloatBytes(frames.LengthOf(index)));
}

Buffer AllReduce::OwnValues(const Round& round, int64_t index) const {
  const RingFrames frames = FramesOf(round);
  const int64_t offset = frames.OffsetOf(index);
  const int64_t length = frames.LengthOf(index);
  if (!layer_.sparse.has_value()) {
    return layer_.gradient.Slice(FloatBytes(offset), FloatBytes(length));
  }
  return length == 0 ? Buffer() : layer_.sparse->Contribution(offset, length);
}

}  // namespace nereus
