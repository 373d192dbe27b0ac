#include "worker/machine/server_syncer.h"

#include <utility>

namespace nereus {

ServerSyncer::ServerSyncer(JobPtr job, int layer, int rank, LayerMemory memory)
    : Syncer(std::move(job), layer, rank, std::move(memory)) {}

absl::Status ServerSyncer::Keep(Buffer gradient) {
  gradient_ = std::move(gradient);
  return absl::OkStatus();
}

void ServerSyncer::KeepFactors(FactorBuffers factors, Outbox& out) {
  Keep(Multiply(std::move(factors), product_, out)).IgnoreError();
}

void ServerSyncer::Contribute(Outbox& out) {
  results_.Expect(next_round(), updates_here() ? memory_.parameters : gradient_,
                  Buffer(), std::nullopt, sparse());
  if (sparse_.has_value()) {
    ContributeBlocks(out);
  } else {
    SendToShards(next_round(), gradient_, out);
  }
}

void ServerSyncer::ContributeBlocks(Outbox& out) const {
  for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
    if (results_.Complete(chunk)) continue;
    const FrameGrid grid = job_->GridOf(chunk);
    const int64_t first = sparse_->FrameAt(chunk.offset);
    FrameHeader header =
        Header(FrameKind::kContribution, chunk.index, next_round());
    for (int64_t index = 0; index < grid.Count(); ++index) {
      header.frames += sparse_->travels(first + index) ? 1 : 0;
    }
    const PeerId server = job_->ServerOf(chunk);
    for (int64_t index = 0; index < grid.Count(); ++index) {
      if (!sparse_->travels(first + index)) continue;
      const int64_t offset = chunk.offset + grid.Offset(index);
      header.part =
          sparse_->resumes(first + index) ? kResumedPart : kValuesPart;
      out.Add(SendFrame{server,
                        {CutHeader(*job_, header, grid, index),
                         sparse_->Contribution(offset, grid.Length(index))}});
    }
    if (header.frames > 0) continue;
    header.wire = job_->WireOf(header);
    out.Add(SendFrame{server, {header, {}}});
  }
}

}  // namespace nereus
