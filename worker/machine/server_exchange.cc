// Exchange through the servers: the parameter-server scheme (Li et al.,
// "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014,
// section 3).
//
// The layer is cut into chunks, and each chunk belongs to a shard. Contribute
// sends each shard its part of the gradient. A shard adds the contributions of
// all workers to a chunk, updates the chunk with their mean, and sends the
// result to every worker; with Overlap::kDecoupled it sends the result when
// Gather asks for it. The result lands in its final place, frame by frame, in
// any order (ResultAssembly). The frame that arrives last completes the round.
// If the caller runs the optimizer, the result is the mean gradient itself.
//
// In a sparse job a contribution has only the blocks that the round's choice
// names (GradientFlow, section 3.3). Shards know the same choice and wait for
// the same blocks.

#include "worker/machine/server_exchange.h"

namespace nereus {

void ServerExchange::Contribute(Outbox& out) {
  const int64_t round = ledger_.next_round();
  const SparseGradient* sparse =
      layer_.sparse.has_value() ? &*layer_.sparse : nullptr;
  results_.Expect(
      round,
      layer_.caller_updates() ? layer_.gradient : layer_.memory.parameters,
      Buffer(), std::nullopt, sparse);
  if (sparse != nullptr) return ContributeBlocks(out);
  layer_.SendToShards(round, layer_.gradient, results_, out);
}

// Sends the blocks of each chunk that travel, or a frame without payload if
// none does: the shard counts the contributions of the workers to each chunk.
void ServerExchange::ContributeBlocks(Outbox& out) const {
  const Job& job = *layer_.job;
  const SparseGradient& sparse = *layer_.sparse;
  for (const Chunk& chunk : job.placement.layer_chunks(layer_.index)) {
    if (results_.Complete(chunk)) continue;
    const FrameGrid grid = job.GridOf(chunk);
    const int64_t first = sparse.FrameAt(chunk.offset);
    FrameHeader header = layer_.Header(FrameKind::kContribution, chunk.index,
                                       ledger_.next_round());
    for (int64_t index = 0; index < grid.Count(); ++index) {
      header.frames += sparse.travels(first + index) ? 1 : 0;
    }
    const PeerId server = job.ServerOf(chunk);
    for (int64_t index = 0; index < grid.Count(); ++index) {
      if (!sparse.travels(first + index)) continue;
      const int64_t offset = chunk.offset + grid.Offset(index);
      header.part = sparse.resumes(first + index) ? kResumedPart : kValuesPart;
      out.Add(SendFrame{server,
                        {CutHeader(job, header, grid, index),
                         sparse.Contribution(offset, grid.Length(index))}});
    }
    if (header.frames > 0) continue;
    header.wire = job.WireOf(header);
    out.Add(SendFrame{server, {header, {}}});
  }
}

void ServerExchange::Gather(Outbox& out) {
  layer_.AskShards(ledger_.next_round(), results_, out);
}

std::optional<RoundResult> ServerExchange::Finish(Outbox&) {
  if (!ledger_.is_sent() || results_.open()) return std::nullopt;
  const int64_t round = ledger_.next_round();
  if (results_.round() != round) return std::nullopt;
  return RoundResult{layer_.job->ContributorsOf(round)};
}

}  // namespace nereus
