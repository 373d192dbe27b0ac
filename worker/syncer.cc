#include "worker/syncer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/factor_syncer.h"
#include "worker/server_syncer.h"

namespace nereus {

std::unique_ptr<Syncer> Syncer::Make(JobPtr job, int layer, int rank,
                                     Buffer parameters) {
  switch (job->routes[layer].scheme) {
    case Scheme::kServer:
      return std::make_unique<ServerSyncer>(std::move(job), layer, rank,
                                            std::move(parameters));
    case Scheme::kFactor:
      return std::make_unique<FactorSyncer>(std::move(job), layer, rank,
                                            std::move(parameters));
  }
  return nullptr;
}

Syncer::Syncer(JobPtr job, int layer, int rank, Buffer parameters)
    : job_(std::move(job)),
      layer_(layer),
      rank_(rank),
      parameters_(std::move(parameters)),
      results_(job_, layer) {}

FrameHeader Syncer::Header(FrameKind kind, int64_t chunk, int64_t round) const {
  return MakeHeader(*job_, PeerId::Worker(rank_), kind, layer_, chunk, round);
}

void Syncer::Start(Outbox& out) {
  if (rank_ == 0) Contribute(kInitialRound, parameters_, out);
  results_.Open(kInitialRound, parameters_);
  for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
    const FrameHeader header =
        Header(FrameKind::kPull, chunk.index, kInitialRound);
    out.Add(SendFrame{PeerId::Shard(chunk.shard), Frame{header, Buffer()}});
  }
}

void Syncer::Contribute(int64_t round, const Buffer& values, Outbox& out) {
  for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
    const FrameHeader header =
        Header(FrameKind::kContribution, chunk.index, round);
    CutIntoFrames(
        header, values.Slice(chunk.offset * 4, chunk.length * 4),
        [&](Frame frame) {
          out.Add(SendFrame{PeerId::Shard(chunk.shard), std::move(frame)});
        });
  }
}

absl::Status Syncer::CheckRound(int64_t round) const {
  if (pushed_round_ == done_round_ && round == done_round_ + 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "layer ", spec().name, ": step ", round, " is pushed after step ",
      pushed_round_, ", of which steps up to ", done_round_,
      " are done; steps come one by one"));
}

absl::Status Syncer::Push(int64_t round, Buffer gradient, Outbox& out) {
  NEREUS_RETURN_IF_ERROR(CheckRound(round));
  NEREUS_RETURN_IF_ERROR(DoPush(round, std::move(gradient), out));
  pushed_round_ = round;
  return absl::OkStatus();
}

absl::Status Syncer::PushFactors(int64_t round, FactorBuffers factors,
                                 Outbox& out) {
  NEREUS_RETURN_IF_ERROR(CheckRound(round));
  pushed_round_ = round;
  DoPushFactors(round, std::move(factors), out);
  return absl::OkStatus();
}

absl::StatusOr<Landing> Syncer::OnHeader(const FrameHeader& header) const {
  if (header.kind != FrameKind::kResult) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header), ": layer ", spec().name, " goes by scheme ",
        SchemeName(job_->routes[layer_].scheme)));
  }
  return results_.Place(header);
}

void Syncer::OnFrame(const FrameHeader& header, Outbox& out) {
  if (results_.Count(header)) Done(header.round, out);
}

void Syncer::Done(int64_t round, Outbox& out) {
  done_round_ = round;
  out.Add(LayerDone{layer_, round});
}

std::string Syncer::Missing() const { return results_.Missing(); }

}  // namespace nereus
