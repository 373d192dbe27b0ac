#include "worker/machine/syncer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/machine/factor_syncer.h"
#include "worker/machine/ring_syncer.h"
#include "worker/machine/server_syncer.h"

namespace nereus {

std::unique_ptr<Syncer> Syncer::Make(JobPtr job, int layer, int rank,
                                     LayerMemory memory) {
  switch (job->routes[layer].scheme) {
    case Scheme::kServer:
      return std::make_unique<ServerSyncer>(std::move(job), layer, rank,
                                            std::move(memory));
    case Scheme::kFactor:
      return std::make_unique<FactorSyncer>(std::move(job), layer, rank,
                                            std::move(memory));
    case Scheme::kRing:
      return std::make_unique<RingSyncer>(std::move(job), layer, rank,
                                          std::move(memory));
  }
  return nullptr;
}

Syncer::Syncer(JobPtr job, int layer, int rank, LayerMemory memory)
    : layer_(layer),
      rank_(rank),
      memory_(std::move(memory)),
      job_(std::move(job)),
      results_(job_, layer),
      asked_(job_->workers.size(), false) {
  verdicts_.Add(job_->verdicts);
  if (job_->IsSparse(layer)) {
    sparse_.emplace(*job_, layer, memory_.holds_here);
  }
}

FrameHeader Syncer::Header(FrameKind kind, int64_t chunk, int64_t round) const {
  return MakeHeader(*job_, PeerId::Worker(rank_), kind, layer_, chunk, round);
}

int64_t Syncer::next_round() const {
  return fetching() ? job_->workers[position()].first_step : done_round_ + 1;
}

void Syncer::Start(Outbox& out) {
  started_ = true;
  if (position() >= 0) Fetch(out);
}

void Syncer::Adopt(const Syncer& before, Outbox& out) {
  started_ = true;
  done_round_ = before.done_round_;
  pushed_round_ = done_round_;
  EnterEpoch(out);
  contributors_ = before.contributors_;
  left_ = before.left_;
}

void Syncer::Refetch(Outbox& out) {
  done_round_ = kInitialRound - 1;
  pushed_round_ = done_round_;
  Start(out);
}

void Syncer::Fetch(Outbox& out) {
  const int64_t round = next_round() - 1;
  const bool from_shards =
      round == job_->base_round || !job_->WorkersOwn(layer_);
  if (from_shards) {
    if (round == kInitialRound && position() == 0) {
      SendToShards(round, memory_.parameters, out);
    }
    // From a checkpoint, the optimizer's state comes too.
    const bool restored = round != kInitialRound && job_->WorkersOwn(layer_);
    results_.Expect(round, memory_.parameters, restored ? state() : Buffer(),
                    std::nullopt);
    AskShards(round, out);
    return;
  }
  const PeerId donor = PeerId::Worker(job_->donor);
  results_.Expect(round, memory_.parameters, state(), donor);
  out.Add(SendFrame{donor, {Header(FrameKind::kPull, 0, round), {}}});
}

void Syncer::AskShards(int64_t round, Outbox& out) const {
  for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
    if (results_.Complete(chunk)) continue;
    out.Add(SendFrame{job_->ServerOf(chunk),
                      {Header(FrameKind::kPull, chunk.index, round), {}}});
  }
}

std::optional<bool> Syncer::Skipped(int64_t round) const {
  return job_->votes() ? verdicts_.Skipped(round) : false;
}

void Syncer::OnVerdict(const StepVerdict& verdict, Outbox& out) {
  verdicts_.Add({&verdict, 1});
  Settle(out);
  TellIfSettled(out);
}

void Syncer::OnEpoch(JobPtr job, Outbox& out) {
  job_ = std::move(job);
  verdicts_.Add(job_->verdicts);
  TellIfSettled(out);
  results_.OnEpoch(job_);
  asked_.assign(job_->workers.size(), false);
  joiners_.clear();
  // Again. The caller writes the parameters between a round and its next push,
  // if it updates them.
  const bool updated = updates_here() || left_ || (pushed() && !held_);
  if (updated) OnValuesOf(done_round_, /*last=*/left_, out);
  EnterEpoch(out);
  if (position() < 0 || !started_) return;
  if (fetching()) {
    Fetch(out);
  } else if (pushed() && !held_) {
    Contribute(out);
    if (job_->decoupled() && pushed() && gathers()) BeginGather(out);
  }
}

void Syncer::SendToShards(int64_t round, const Buffer& values,
                          Outbox& out) const {
  for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
    if (results_.round() == round && results_.Complete(chunk)) continue;
    const FrameHeader header =
        Header(FrameKind::kContribution, chunk.index, round);
    CutIntoFrames(*job_, header, job_->GridOf(chunk),
                  values.Slice(chunk.offset * 4, chunk.length * 4),
                  [&](Frame frame) {
                    out.Add(SendFrame{job_->ServerOf(chunk), std::move(frame)});
                  });
  }
}

Buffer Syncer::Multiply(FactorBuffers factors, Buffer& product,
                        Outbox& out) const {
  Buffer gradient = factors.gradient;
  if (gradient.bytes() == 0) {
    // Frames of a contribution that was made again may still be on their way
    // when its round is done.
    if (product.bytes() == 0 || !product.unique()) {
      product = Buffer::AllocateLike(
          memory_.parameters,
          spec().parameters * static_cast<int64_t>(sizeof(float)));
    }
    gradient = product;
  }
  out.Add(MultiplyFactors{spec().rows, spec().m, spec().n, has_bias(),
                          factors.scale, std::move(factors.output_gradient),
                          std::move(factors.input), gradient});
  return gradient;
}

absl::Status Syncer::CheckRound(int64_t round) const {
  if (!fetching() && !pushed() && round == done_round_ + 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "layer ", spec().name, ": step ", round, " is pushed after step ",
      pushed_round_, ", of which steps up to ", done_round_,
      " are done; steps come one by one"));
}

absl::Status Syncer::Push(int64_t round, Buffer gradient, Outbox& out) {
  NEREUS_RETURN_IF_ERROR(CheckRound(round));
  NEREUS_RETURN_IF_ERROR(Keep(std::move(gradient)));
  OnPushed(round, out);
  return absl::OkStatus();
}

absl::Status Syncer::PushFactors(int64_t round, FactorBuffers factors,
                                 Outbox& out) {
  NEREUS_RETURN_IF_ERROR(CheckRound(round));
  KeepFactors(std::move(factors), out);
  OnPushed(round, out);
  return absl::OkStatus();
}

void Syncer::OnPushed(int64_t round, Outbox& out) {
  pushed_round_ = round;
  held_ = true;
  ServeJoiners(out);
}

void Syncer::Send(Outbox& out, const BlockChoice& choice, const Buffer& norms) {
  if (!std::exchange(held_, false)) return;
  if (sparse_.has_value()) {
    sparse_->Begin(*job_, choice, kept(), memory_.parameters, norms, out);
  }
  // The caller has updated the parameters, if that is its part.
  if (!updates_here()) OnValuesOf(done_round_, /*last=*/false, out);
  Contribute(out);
}

void Syncer::Leave(Outbox& out) {
  left_ = true;
  // Where servers update the parameters, a checkpoint has been sent them.
  if (!updates_here() || !job_->IsSaved(done_round_)) {
    OnValuesOf(done_round_, /*last=*/true, out);
  }
  ServeJoiners(out);
}

void Syncer::Gather(Outbox& out) {
  if (gathers()) return;
  gathered_round_ = done_round_ + 1;
  BeginGather(out);
}

absl::StatusOr<Landing> Syncer::OnHeader(const FrameHeader& header) const {
  switch (header.kind) {
    case FrameKind::kResult:
      return results_.Place(header);
    case FrameKind::kPull:
      return OnPullHeader(header);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          DescribeFrame(header), ": layer ", spec().name, " goes by scheme ",
          SchemeName(job_->routes[layer_].scheme)));
  }
}

absl::StatusOr<Landing> Syncer::OnPullHeader(const FrameHeader& header) const {
  const int asking = job_->PositionOf(header.sender.rank);
  if (asking < 0 || rank_ != job_->donor || !job_->WorkersOwn(layer_) ||
      header.payload_bytes != 0 || header.offset != 0 || header.chunk != 0 ||
      header.part != kValuesPart ||
      header.round != job_->workers[asking].first_step - 1 ||
      header.round == job_->base_round) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header),
                     ": a worker that joins asks the donor, once, for "
                     "a layer that workers own"));
  }
  return asked_[asking] ? Landing::Discard() : Landing::Scratch();
}

void Syncer::OnFrame(const FrameHeader& header, Outbox& out) {
  if (header.kind == FrameKind::kPull) {
    asked_[job_->PositionOf(header.sender.rank)] = true;
    joiners_.push_back({header.sender.rank, header.round});
    ServeJoiners(out);
    return;
  }
  if (!results_.Count(header)) return;
  const bool fetched = fetching();
  if (fetched) pushed_round_ = header.round;
  done_round_ = header.round - 1;
  Done(fetched ? 0 : job_->ContributorsOf(header.round), out);
}

void Syncer::Done(int contributors, Outbox& out, Buffer mean) {
  ++done_round_;
  mean_ = std::move(mean);
  contributors_ = contributors;
  Release();
  if (sparse_.has_value()) sparse_->End();
  if (updates_here()) OnValuesOf(done_round_, /*last=*/false, out);
  told_ = false;
  TellIfSettled(out);
  ServeJoiners(out);
}

void Syncer::TellIfSettled(Outbox& out) {
  if (told_) return;
  // What was fetched is of a step that others have done.
  const std::optional<bool> skipped =
      contributors_ == 0 ? false : Skipped(done_round_);
  if (!skipped.has_value()) return;
  told_ = true;
  if (layer_ == job_->block_layer) return;  // None of the caller's.
  out.Add(
      LayerDone{layer_, done_round_, *skipped, std::exchange(mean_, Buffer())});
}

void Syncer::ServeJoiners(Outbox& out) {
  std::vector<Joiner> waiting;
  for (const Joiner& joiner : std::exchange(joiners_, {})) {
    // Where the caller updates the parameters, they are of a round once the
    // next one is pushed, or the caller has left. They stay so until the joiner
    // has taken part in it.
    const bool updated = updates_here() || left_;
    const int64_t owned = updated ? done_round_ : pushed_round_ - 1;
    if (owned < joiner.round) {
      waiting.push_back(joiner);
    } else {
      SendOwned(joiner, out);
    }
  }
  joiners_ = std::move(waiting);
}

void Syncer::SendOwned(const Joiner& joiner, Outbox& out) const {
  const PeerId to = PeerId::Worker(joiner.rank);
  const int64_t bytes = memory_.parameters.bytes();
  const Buffer state = this->state();
  for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
    FrameHeader header = Header(FrameKind::kResult, chunk.index, joiner.round);
    const auto send = [&](const Buffer& values, int64_t start) {
      CutIntoFrames(*job_, header, job_->GridOf(chunk),
                    values.Slice(start + chunk.offset * 4, chunk.length * 4),
                    [&](Frame frame) {
                      out.Add(SendFrame{to, std::move(frame)});
                    });
    };
    send(memory_.parameters, 0);
    for (int64_t start = 0; start < state.bytes(); start += bytes) {
      ++header.part;
      send(state, start);
    }
  }
}

void Syncer::OnValuesOf(int64_t round, bool last, Outbox& out) const {
  // What was fetched is as others have it.
  if (contributors_ == 0 || position() < 0) return;
  const bool is_saved = job_->IsSaved(round);
  const bool is_replica = !job_->partial() && layer_ != job_->block_layer;
  if (is_replica && (last || job_->IsCheckpoint(round))) {
    out.Add(ChecksumValues{layer_, round, memory_.parameters});
  }
  if (is_saved && position() == 0) SendToCheckpoint(round, out);
}

void Syncer::SaveLast(int64_t round, Outbox& out) const {
  if (round == job_->base_round) return;  // The shards have all layers.
  // The first worker has sent it already if it is a checkpoint's, unless it was
  // given the values when the others had them. Seed 225.
  const bool is_sent =
      job_->IsSaved(round) && position() == 0 && contributors_ > 0;
  if (left_ && done_round_ == round && !is_sent) SendToCheckpoint(round, out);
}

void Syncer::SendToCheckpoint(int64_t round, Outbox& out) const {
  if (!job_->WorkersOwn(layer_)) return;
  const int64_t bytes = memory_.parameters.bytes();
  std::vector<Buffer> arrays = {memory_.parameters};
  const Buffer state = this->state();
  for (int64_t start = 0; start < state.bytes(); start += bytes) {
    arrays.push_back(state.Slice(start, bytes));
  }
  // Copies: the next update does not wait until the shards have them.
  for (Buffer& array : arrays) {
    if (left_) break;
    const Buffer copy = Buffer::AllocateLike(array, bytes);
    out.Add(CopyValues{copy, std::exchange(array, copy)});
  }
  for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
    FrameHeader header = Header(FrameKind::kOwned, chunk.index, round);
    for (const Buffer& array : arrays) {
      CutIntoFrames(
          *job_, header, array.Slice(chunk.offset * 4, chunk.length * 4),
          [&](Frame frame) {
            out.Add(SendFrame{job_->ServerOf(chunk), std::move(frame)});
          });
      ++header.part;
    }
  }
}

std::string Syncer::Missing() const { return results_.Missing(); }

}  // namespace nereus
