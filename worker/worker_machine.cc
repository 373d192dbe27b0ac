#include "worker/worker_machine.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"

namespace nereus {

WorkerMachine::WorkerMachine(JobPtr job, int rank,
                             std::vector<LayerMemory> memory)
    : rank_(rank), job_(std::move(job)) {
  NEREUS_CHECK(memory.size() == job_->layers.size())
      << memory.size() << " memories, " << job_->layers.size() << " layers";
  const int position = job_->PositionOf(rank);
  NEREUS_CHECK(position >= 0) << "worker " << rank;
  begun_step_ = job_->workers[position].first_step - 1;
  for (size_t layer = 0; layer < memory.size(); ++layer) {
    syncers_.push_back(Syncer::Make(job_, static_cast<int>(layer), rank,
                                    std::move(memory[layer])));
  }
}

void WorkerMachine::Start(Outbox& out) {
  for (auto& syncer : syncers_) syncer->Start(out);
}

bool WorkerMachine::BeginStep(int64_t step) {
  if (frozen_) return false;
  begun_step_ = std::max(begun_step_, step);
  return true;
}

absl::Status WorkerMachine::OnPush(int layer, int64_t round, Buffer gradient,
                                   Outbox& out) {
  begun_step_ = std::max(begun_step_, round);
  return syncers_[layer]->Push(round, std::move(gradient), frozen_, out);
}

absl::Status WorkerMachine::OnPushFactors(int layer, int64_t round,
                                          FactorBuffers factors, Outbox& out) {
  begun_step_ = std::max(begun_step_, round);
  return syncers_[layer]->PushFactors(round, std::move(factors), frozen_, out);
}

absl::StatusOr<Landing> WorkerMachine::OnHeader(
    PeerId from, const FrameHeader& header) const {
  NEREUS_RETURN_IF_ERROR(CheckFrame(*job_, from, header));
  const bool between_workers = header.kind == FrameKind::kFactors ||
                               header.kind == FrameKind::kPullFactors ||
                               header.kind == FrameKind::kPull;
  const bool for_worker = header.kind == FrameKind::kResult || between_workers;
  if (!for_worker || (between_workers && from.role != Role::kWorker)) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header),
        ": workers take results, and factors and pulls from workers"));
  }
  NEREUS_ASSIGN_OR_RETURN(Landing landing,
                          syncers_[header.layer]->OnHeader(header));
  // They are sent again in the next epoch.
  if (frozen_ && from.role == Role::kWorker) return Landing::Discard();
  return landing;
}

void WorkerMachine::OnFrame(PeerId, const Frame& frame, Outbox& out) {
  syncers_[frame.header.layer]->OnFrame(frame.header, out);
}

MachineReport WorkerMachine::Report() const {
  MachineReport report;
  report.begun_step = begun_step_;
  for (size_t layer = 0; layer < syncers_.size(); ++layer) {
    const Syncer& syncer = *syncers_[layer];
    report.fetching |= syncer.fetching();
    if (job_->routes[layer].scheme != Scheme::kFactor || syncer.fetching()) {
      continue;
    }
    report.factor_layers.push_back({static_cast<int32_t>(layer),
                                    syncer.done_round(),
                                    syncer.contributors()});
  }
  return report;
}

void WorkerMachine::OnEpoch(JobPtr job, Outbox& out) {
  job_ = std::move(job);
  frozen_ = false;
  for (auto& syncer : syncers_) syncer->OnEpoch(job_, out);
}

}  // namespace nereus
