#include "server/coordinator/checkpoint_requests.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/printable.h"

namespace nereus {
namespace {

// Number of failed rounds to remember, the newest ones.
constexpr size_t kFailedKept = 16;

}  // namespace

bool CheckpointRequests::Request(bool has_begun) {
  wanted_again_ = wanted_again_ || (planned_ && has_begun);
  return !std::exchange(wanted_, true);
}

void CheckpointRequests::OnEpoch(const Job& job, bool from_base) {
  if (from_base) failed_rounds_.clear();  // These rounds come again.
  planned_ = wanted_;
  ledger_.OnEpoch(job, from_base);
}

// The manifest makes a checkpoint valid, so it is written last.
bool CheckpointRequests::OnPart(const JobPtr& job, const CheckpointPart& part,
                                const std::string& member,
                                CoordinatorOutbox& out) {
  if (!part.error.empty()) {
    return OnFailure(part.round,
                     absl::StrCat(member, " could not write its part: ",
                                  Printable(part.error)),
                     *job, out);
  }
  std::optional<CheckpointRecord> record = ledger_.OnPart(*job, part);
  if (!record.has_value()) return false;
  completing_[record->round] = *record;
  out.push_back(CompleteCheckpoint{job, *std::move(record)});
  return false;
}

bool CheckpointRequests::OnWritten(int64_t round, const absl::Status& written,
                                   const Job& job, CoordinatorOutbox& out) {
  const auto completed = completing_.extract(round);
  if (completed.empty()) return false;
  if (!written.ok()) {
    return OnFailure(round, std::string(written.message()), job, out);
  }
  const CheckpointRecord& record = completed.mapped();
  ledger_.OnComplete(record);
  if (planned_ && round >= job.checkpoint_round) EndPlanned();
  out.push_back(Announce{
      false, absl::StrCat("checkpoint of round ", round, ": ", record.bytes(),
                          " bytes in ", record.files.size(), " files")});
  return true;
}

bool CheckpointRequests::OnFailure(int64_t round, const std::string& why,
                                   const Job& job, CoordinatorOutbox& out) {
  out.push_back(Announce{
      true, absl::StrCat("no checkpoint of round ", round, ": ", why)});
  failure_ = why;
  failed_rounds_.insert(round);
  if (failed_rounds_.size() > kFailedKept) {
    failed_rounds_.erase(failed_rounds_.begin());
  }
  // An earlier round than the planned one may fail, and the planned one not.
  if (!planned_ || round < job.checkpoint_round) return false;
  EndPlanned();
  return true;
}

void CheckpointRequests::EndPlanned() {
  wanted_ = std::exchange(wanted_again_, false);
  planned_ = false;
}

}  // namespace nereus
