// Transfer of a layer's state between workers and shards. Read in this order:
// Fetch is the receiving side; OnPull and ServeJoiners are the donor's side;
// OnValuesOf, SaveLast and SendToCheckpoint are the way to the shards.

#include "worker/machine/layer_transfer.h"

#include <utility>

#include "worker/machine/float_bytes.h"

namespace nereus {

LayerTransfer::LayerTransfer(const WorkerLayer& layer,
                             const RoundLedger& ledger, ResultAssembly& results)
    : layer_(layer),
      ledger_(ledger),
      results_(results),
      asked_(layer.job->workers.size(), false) {}

void LayerTransfer::Fetch(Outbox& out) {
  const Job& job = *layer_.job;
  const Buffer& parameters = layer_.memory.parameters;
  const int64_t round = ledger_.next_round() - 1;
  const bool is_owned = job.WorkersOwn(layer_.index);
  if (is_owned && round != job.history.base_round) {
    const PeerId donor = PeerId::Worker(job.history.donor);
    results_.Expect(round, parameters, layer_.state, donor);
    out.Add(SendFrame{donor, {layer_.Header(FrameKind::kPull, 0, round), {}}});
    return;
  }
  if (round == kInitialRound && layer_.position() == 0) {
    layer_.SendToShards(round, parameters, results_, out);
  }
  // If the shards have a worker-owned layer as of a checkpoint or a switch
  // round, they have its optimizer state, too.
  const bool is_restored = is_owned && round != kInitialRound;
  results_.Expect(round, parameters, is_restored ? layer_.state : Buffer(),
                  std::nullopt);
  layer_.AskShards(round, results_, out);
}

absl::StatusOr<Landing> LayerTransfer::OnPullHeader(
    const FrameHeader& header) const {
  const Job& job = *layer_.job;
  const int asking = job.PositionOf(header.sender.rank);
  if (asking < 0 || layer_.rank != job.history.donor ||
      !job.WorkersOwn(layer_.index) || header.payload_bytes != 0 ||
      header.offset != 0 || header.chunk != 0 || header.part != kValuesPart ||
      header.round != job.workers[asking].first_step - 1 ||
      header.round == job.history.base_round) {
    return RefuseFrame(header,
                       "a joining worker asks only the donor, for a layer that "
                       "workers own, as of the round before its first step");
  }
  return asked_[asking] ? Landing::Discard() : Landing::Scratch();
}

void LayerTransfer::OnPull(const FrameHeader& header, Outbox& out) {
  asked_[layer_.job->PositionOf(header.sender.rank)] = true;
  joiners_.push_back({header.sender.rank, header.round});
  ServeJoiners(out);
}

void LayerTransfer::ServeJoiners(Outbox& out) {
  // If the caller updates the parameters, they have the values of a round once
  // the caller has pushed the next round or has left. They keep these values
  // until the joining worker has contributed to the next round.
  const bool is_updated = !layer_.caller_updates() || has_left_;
  const int64_t round =
      is_updated ? ledger_.done_round() : ledger_.pushed_round() - 1;
  std::vector<Joiner> waiting;
  for (const Joiner& joiner : std::exchange(joiners_, {})) {
    if (round < joiner.round) {
      waiting.push_back(joiner);
    } else {
      SendArrays(Arrays(), FrameKind::kResult, joiner.round,
                 PeerId::Worker(joiner.rank), out);
    }
  }
  joiners_ = std::move(waiting);
}

std::vector<Buffer> LayerTransfer::Arrays() const {
  const int64_t bytes = layer_.memory.parameters.bytes();
  std::vector<Buffer> arrays = {layer_.memory.parameters};
  for (int64_t start = 0; start < layer_.state.bytes(); start += bytes) {
    arrays.push_back(layer_.state.Slice(start, bytes));
  }
  return arrays;
}

void LayerTransfer::SendArrays(const std::vector<Buffer>& arrays,
                               FrameKind kind, int64_t round,
                               std::optional<PeerId> to, Outbox& out) const {
  const Job& job = *layer_.job;
  for (const Chunk& chunk : job.placement.layer_chunks(layer_.index)) {
    FrameHeader header = layer_.Header(kind, chunk.index, round);
    // In a sparse job results are cut at the boundaries of blocks. A checkpoint
    // has no blocks.
    const FrameGrid grid = kind == FrameKind::kResult ? job.GridOf(chunk)
                                                      : FrameGrid(chunk.length);
    for (const Buffer& array : arrays) {
      CutIntoFrames(
          job, header, grid,
          array.Slice(FloatBytes(chunk.offset), FloatBytes(chunk.length)),
          [&](Frame frame) {
            out.Add(
                SendFrame{to.value_or(job.ServerOf(chunk)), std::move(frame)});
          });
      ++header.part;
    }
  }
}

void LayerTransfer::OnValuesOf(int64_t round, bool is_last, Outbox& out) const {
  const Job& job = *layer_.job;
  if (is_last || job.IsCheckpoint(round)) ReportChecksum(round, out);
  if (made_values() && job.IsSaved(round) && layer_.position() == 0) {
    SendToCheckpoint(round, out);
  }
}

bool LayerTransfer::has_replica() const {
  return made_values() && !layer_.job->partial() &&
         layer_.index != layer_.job->pool.layer;
}

void LayerTransfer::ReportChecksum(int64_t round, Outbox& out) const {
  if (!has_replica()) return;
  out.Add(ChecksumValues{layer_.index, round, layer_.memory.parameters});
}

void LayerTransfer::Sample(int64_t round, Outbox& out) const {
  out.Add(ChecksumValues{
      layer_.index, round, layer_.memory.parameters,
      SampledElementsOf(layer_.index, round, layer_.spec().parameters)});
}

void LayerTransfer::SaveLast(int64_t round, Outbox& out) const {
  // The shards have every layer as of the base round.
  if (round == layer_.job->history.base_round) return;
  // If the job saves the round, the worker at position 0 has sent the layer
  // already. The exception is a worker that joined later and has fetched the
  // values of the round (simulation seed 225).
  const bool is_sent = layer_.job->IsSaved(round) && layer_.position() == 0 &&
                       ledger_.contributors() > 0;
  if (has_left_ && ledger_.done_round() == round && !is_sent) {
    SendToCheckpoint(round, out);
  }
}

void LayerTransfer::SendToCheckpoint(int64_t round, Outbox& out) const {
  if (!layer_.job->WorkersOwn(layer_.index)) return;
  std::vector<Buffer> arrays = Arrays();
  // Sends copies, so that the next update need not wait for the shards.
  for (Buffer& array : arrays) {
    if (has_left_) break;  // No update follows.
    const Buffer copy = Buffer::AllocateLike(array, array.bytes());
    out.Add(CopyValues{copy, std::exchange(array, copy)});
  }
  SendArrays(arrays, FrameKind::kOwned, round, /*to=*/std::nullopt, out);
}

void LayerTransfer::Leave(Outbox& out) {
  has_left_ = true;
  const int64_t round = ledger_.done_round();
  if (layer_.caller_updates()) {
    OnValuesOf(round, /*is_last=*/true, out);
  } else if (!layer_.job->IsCheckpoint(round)) {
    // Syncer::OnDone has called OnValuesOf for this round. That has asked for
    // the checksum only if the round is that of a checkpoint.
    ReportChecksum(round, out);
  }
  ServeJoiners(out);
}

void LayerTransfer::OnEpoch(Outbox& out) {
  asked_.assign(layer_.job->workers.size(), false);
  joiners_.clear();
  // If the caller updates the parameters, they have the values of the last done
  // round once the contribution to the next round is sent. If the servers
  // update them, they have these values until that contribution is sent: then
  // results of the next round land in them (simulation seed 1300). If the
  // caller has left, or the workers run the job's optimizer, they always have
  // these values.
  const bool lands = UsesServers(layer_.route().scheme) && ledger_.is_sent();
  const bool is_updated =
      has_left_ || (layer_.caller_updates() ? ledger_.is_sent() : !lands);
  if (is_updated) OnValuesOf(ledger_.done_round(), has_left_, out);
}

}  // namespace nereus
