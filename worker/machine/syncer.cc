// The life of one layer on one worker, in this order: Start or Adopt begins it;
// Push and Send are the caller's half of a round; OnFrame is the half of the
// other processes; FinishIfComplete and OnDone end the round; OnEpoch begins an
// open round again.

#include "worker/machine/syncer.h"

#include <optional>
#include <utility>

#include "common/base/status.h"
#include "worker/machine/direct_exchange.h"
#include "worker/machine/factor_exchange.h"
#include "worker/machine/ring_exchange.h"
#include "worker/machine/server_exchange.h"

namespace nereus {
namespace {

std::unique_ptr<Exchange> MakeExchange(WorkerLayer& layer,
                                       const RoundLedger& ledger,
                                       ResultAssembly& results) {
  switch (layer.route().scheme) {
    case Scheme::kServer:
      return std::make_unique<ServerExchange>(layer, ledger, results);
    case Scheme::kFactor:
      return std::make_unique<FactorExchange>(layer, ledger);
    case Scheme::kRing:
      return std::make_unique<RingExchange>(layer, ledger);
    case Scheme::kDirect:
      return std::make_unique<DirectExchange>(layer, ledger);
  }
  return nullptr;
}

// True if the frame has values of a result, or first values.
bool IsOfResult(const WorkerLayer& layer, const FrameHeader& header) {
  return header.kind == FrameKind::kResult ||
         (header.kind == FrameKind::kOutcome &&
          UsesServers(layer.route().scheme));
}

}  // namespace

Syncer::Syncer(JobPtr job, int layer, int rank, LayerMemory memory,
               RoundLedger* ledger, SampleSchedule* samples)
    : layer_(std::move(job), layer, rank, std::move(memory)),
      ledger_(*ledger),
      results_(layer_.job, layer),
      transfer_(layer_, ledger_, results_),
      samples_(*samples),
      exchange_(MakeExchange(layer_, ledger_, results_)) {}

void Syncer::Start(Outbox& out) {
  is_started_ = true;
  if (layer_.position() >= 0) transfer_.Fetch(out);
}

void Syncer::Adopt(const Syncer& before, Outbox& out) {
  is_started_ = true;
  is_stale_ = !layer_.caller_updates();
  ledger_.OnReroute();
  exchange_->OnEpoch(out);
  transfer_.set_has_left(before.transfer_.has_left());
}

// Fetches the layer again: the shards have it as of the last round of the old
// plan, with the state of their optimizer.
void Syncer::BeginStep(Outbox& out) {
  if (!std::exchange(is_stale_, false)) return;
  ledger_.Restart();
  Start(out);
}

absl::Status Syncer::Push(int64_t round, Buffer gradient, Buffer mean,
                          Outbox& out) {
  NEREUS_TRY(ledger_.CheckPush(round));
  if (layer_.route().scheme == Scheme::kFactor) {
    layer_.factors.gradient = std::move(mean);
    if (layer_.factors.gradient.bytes() == 0 && layer_.caller_updates()) {
      layer_.factors.gradient = gradient;
    }
  }
  layer_.gradient = std::move(gradient);
  OnPushed(round, out);
  return absl::OkStatus();
}

absl::Status Syncer::PushFactors(int64_t round, FactorBuffers factors,
                                 Outbox& out) {
  NEREUS_TRY(ledger_.CheckPush(round));
  if (layer_.route().scheme == Scheme::kFactor) {
    layer_.factors = std::move(factors);
  } else {
    layer_.gradient = layer_.Multiply(std::move(factors), out);
  }
  OnPushed(round, out);
  return absl::OkStatus();
}

void Syncer::OnPushed(int64_t round, Outbox& out) {
  exchange_->Begin(out);
  ledger_.Push(round);
  transfer_.ServeJoiners(out);
}

void Syncer::Send(Outbox& out, const BlockChoice& choice, const Buffer& norms) {
  if (!ledger_.Send()) return;
  const int64_t done = ledger_.done_round();
  if (transfer_.has_replica() && samples_.Chooses(layer_.index, done)) {
    transfer_.Sample(done, out);
  }
  if (layer_.sparse.has_value()) {
    layer_.sparse->Begin(*layer_.job, choice, layer_.gradient,
                         layer_.memory.parameters, norms, out);
  }
  // A caller that runs the optimizer has updated the parameters by now.
  if (layer_.caller_updates()) {
    transfer_.OnValuesOf(done, /*is_last=*/false, out);
  }
  Contribute(out);
}

void Syncer::Contribute(Outbox& out) {
  exchange_->Contribute(out);
  FinishIfComplete(out);
}

absl::StatusOr<Landing> Syncer::OnHeader(const FrameHeader& header) const {
  if (header.kind == FrameKind::kResult) return results_.Place(header);
  return header.kind == FrameKind::kPull ? transfer_.OnPullHeader(header)
                                         : exchange_->OnHeader(header);
}

void Syncer::OnFrame(const Frame& frame, Outbox& out) {
  const FrameHeader& header = frame.header;
  if (header.kind == FrameKind::kPull) return transfer_.OnPull(header, out);
  if (!IsOfResult(layer_, header)) {
    exchange_->OnFrame(frame, out);
  } else if (results_.Count(header) && fetching()) {
    ledger_.OnFetched(header.round);
    return OnDone(out);
  } else {
    exchange_->OnResult(header, out);
  }
  FinishIfComplete(out);
}

void Syncer::OnVerdict(Outbox& out) {
  FinishIfComplete(out);
  ledger_.ReportIfSettled(out);
}

// Called after every event that can complete the round: a frame, the
// contribution of this worker, or a verdict.
void Syncer::FinishIfComplete(Outbox& out) {
  // A worker that has left the epoch while it fetched has no round.
  if (fetching() && layer_.position() < 0) return;
  std::optional<RoundResult> result = exchange_->Finish(out);
  if (!result.has_value()) return;
  ledger_.Finish(result->contributors, std::move(result->mean));
  OnDone(out);
}

void Syncer::OnDone(Outbox& out) {
  // The contribution is the caller's again.
  layer_.gradient = Buffer();
  layer_.factors = FactorBuffers();
  if (layer_.sparse.has_value()) layer_.sparse->End();
  if (!layer_.caller_updates()) {
    transfer_.OnValuesOf(ledger_.done_round(), /*is_last=*/false, out);
  }
  ledger_.ReportIfSettled(out);
  transfer_.ServeJoiners(out);
}

void Syncer::OnEpoch(JobPtr job, Outbox& out) {
  layer_.job = std::move(job);
  ledger_.ReportIfSettled(out);
  results_.OnEpoch(layer_.job);
  transfer_.OnEpoch(out);
  exchange_->OnEpoch(out);
  if (layer_.position() < 0 || !is_started_) return;
  if (fetching()) return transfer_.Fetch(out);
  if (!ledger_.is_sent()) return;
  // Frames of the last epoch no longer count: sends the contribution again.
  Contribute(out);
}

std::string Syncer::Missing() const {
  return fetching() ? results_.Missing() : exchange_->Missing();
}

}  // namespace nereus
