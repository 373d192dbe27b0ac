#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "common/share/file/board_file.h"
#include "worker/client/round_table.h"
#include "worker/machine/turn_keeper.h"
#include "worker/public/client_options.h"

namespace nereus {

// Turns of a client at the device that it shares with other jobs
// (ClientOptions::share): a TurnKeeper and its board, for the threads of a
// client. Thread-safe.
class TurnGuard {
 public:
  // Opens the board. `job`: name of the job. Errors: those of BoardFile::Open.
  static absl::StatusOr<std::unique_ptr<TurnGuard>> Open(
      const ShareOptions& options, const std::string& job);
  // Gives the turn back.
  ~TurnGuard();

  // Returns JoinRequest::turn_base.
  double FirstBase() ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the identity of the worker in its job. Called before the first step.
  void SetIdentity(uint64_t job_id, int rank) ABSL_LOCKS_EXCLUDED(mu_);
  void SetRule(const TurnRule& rule) ABSL_LOCKS_EXCLUDED(mu_);

  // Sets what memory of the device this client keeps, and needs in its turn.
  void SetMemory(int64_t resident_bytes, int64_t turn_bytes)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Notes that the caller computes outside of a step, or does so no more.
  void SetOutside(const RoundTable& rounds, bool outside)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Notes that the caller has pushed a layer, or waits in a call. Gives the
  // turn back if the caller does not compute any more.
  void Note(const RoundTable& rounds, bool waits) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until this client has the turn, if the caller computes a step;
  // otherwise returns OK at once. Every few seconds this call logs what it
  // waits for. Errors: kDeadlineExceeded at `until`; kDataLoss, the board is
  // damaged; kFailedPrecondition, it is gone.
  absl::Status Await(const RoundTable& rounds, absl::Time until)
      ABSL_LOCKS_EXCLUDED(mu_);
  // True if the client has the turn, or needs none.
  bool MayCompute(const RoundTable& rounds) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  TurnGuard(std::unique_ptr<BoardFile> file, TurnSlot slot,
            absl::Duration limit)
      : file_(std::move(file)),
        keeper_(&file_->board(), std::move(slot), limit) {}
  std::string DescribeWait() const ABSL_LOCKS_EXCLUDED(mu_);

  const std::unique_ptr<BoardFile> file_;
  mutable Mutex mu_;
  TurnKeeper keeper_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
