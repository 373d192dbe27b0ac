#include "worker/worker_machine.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"

namespace nereus {

WorkerMachine::WorkerMachine(JobPtr job, int rank,
                             std::vector<Buffer> parameters)
    : job_(std::move(job)) {
  NEREUS_CHECK(parameters.size() == job_->layers.size())
      << parameters.size() << " buffers, " << job_->layers.size() << " layers";
  for (size_t layer = 0; layer < parameters.size(); ++layer) {
    syncers_.push_back(Syncer::Make(job_, static_cast<int>(layer), rank,
                                    std::move(parameters[layer])));
  }
}

void WorkerMachine::Start(Outbox& out) {
  for (auto& syncer : syncers_) syncer->Start(out);
}

absl::Status WorkerMachine::OnPush(int layer, int64_t round, Buffer gradient,
                                   Outbox& out) {
  return syncers_[layer]->Push(round, std::move(gradient), out);
}

absl::Status WorkerMachine::OnPushFactors(int layer, int64_t round,
                                          FactorBuffers factors, Outbox& out) {
  return syncers_[layer]->PushFactors(round, std::move(factors), out);
}

absl::StatusOr<Landing> WorkerMachine::OnHeader(
    PeerId from, const FrameHeader& header) const {
  NEREUS_RETURN_IF_ERROR(CheckFrame(*job_, from, header));
  const bool from_worker = from.role == Role::kWorker;
  const bool for_worker =
      header.kind == FrameKind::kResult || header.kind == FrameKind::kFactors;
  if (!for_worker || from_worker != (header.kind == FrameKind::kFactors)) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header),
        ": workers take results from shards and factors from workers"));
  }
  return syncers_[header.layer]->OnHeader(header);
}

void WorkerMachine::OnFrame(PeerId, const Frame& frame, Outbox& out) {
  syncers_[frame.header.layer]->OnFrame(frame.header, out);
}

}  // namespace nereus
