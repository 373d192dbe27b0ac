#include "worker/client/turn_guard.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/logging.h"

namespace nereus {
namespace {

// Time between two lines about a turn that does not come.
constexpr absl::Duration kNewsInterval = absl::Seconds(5);

std::optional<int64_t> OpenStepOf(const RoundTable& rounds) {
  return rounds.Use([](const StepLedger& ledger) { return ledger.OpenStep(); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<TurnGuard>> TurnGuard::Open(
    const ShareOptions& options, const std::string& job) {
  BoardFile::Options file;
  file.folder = options.folder;
  file.allows_group = options.allows_group;
  file.memory_bytes = options.memory_bytes;
  auto board = NEREUS_TRY(BoardFile::Open(file));
  TurnSlot slot;
  slot.job = job;
  slot.process = getpid();
  slot.weight = options.weight;
  slot.resident_bytes = options.resident_bytes;
  slot.turn_bytes = options.turn_bytes;
  return std::unique_ptr<TurnGuard>(
      new TurnGuard(std::move(board), std::move(slot), options.limit));
}

TurnGuard::~TurnGuard() {
  MutexLock lock(&mu_);
  keeper_.taker().Give(SteadyNow());
}

double TurnGuard::FirstBase() {
  MutexLock lock(&mu_);
  const absl::StatusOr<TurnTable> table = file_->board().Read();
  if (!table.ok()) return 0;  // The first wait for a turn reports the damage.
  return LeastKey(*table) * keeper_.taker().slot().weight;
}

void TurnGuard::SetIdentity(uint64_t job_id, int rank) {
  MutexLock lock(&mu_);
  keeper_.taker().SetIdentity(job_id, rank);
}

void TurnGuard::SetRule(const TurnRule& rule) {
  MutexLock lock(&mu_);
  keeper_.SetRule(rule);
}

void TurnGuard::SetMemory(int64_t resident_bytes, int64_t turn_bytes) {
  MutexLock lock(&mu_);
  keeper_.taker().SetMemory(resident_bytes, turn_bytes);
}

void TurnGuard::SetOutside(const RoundTable& rounds, bool outside) {
  {
    MutexLock lock(&mu_);
    keeper_.SetOutside(outside);
  }
  if (!outside) Note(rounds, /*waits=*/false);
}

// The ledger is read under the lock, so that the newest state of the caller
// counts, whichever thread comes first.
void TurnGuard::Note(const RoundTable& rounds, bool waits) {
  MutexLock lock(&mu_);
  keeper_.Update(OpenStepOf(rounds), waits, SteadyNow());
}

absl::Status TurnGuard::Await(const RoundTable& rounds, absl::Time until) {
  absl::Time news_at = SteadyNow() + kNewsInterval;
  while (true) {
    const uint32_t seen = file_->changes();
    const absl::Time now = SteadyNow();
    absl::Time again;
    NEREUS_TRY(file_->Check());
    {
      MutexLock lock(&mu_);
      if (!keeper_.Update(OpenStepOf(rounds), /*waits=*/false, now)) {
        return absl::OkStatus();
      }
      const auto next = NEREUS_TRY(keeper_.taker().Try(now));
      if (!next.has_value()) return absl::OkStatus();
      again = *next;
    }
    if (now >= until) {
      return DeadlineExceededError("this worker waits for its turn at ",
                                   file_->path(), ": ", DescribeWait());
    }
    if (now >= news_at) {
      NEREUS_LOG(Info) << "waits for its turn at " << file_->path() << ": "
                       << DescribeWait();
      news_at = now + kNewsInterval;
    }
    file_->Await(seen, std::min(again, until));
  }
}

bool TurnGuard::MayCompute(const RoundTable& rounds) const {
  MutexLock lock(&mu_);
  return keeper_.taker().Holds() || !keeper_.Computes(OpenStepOf(rounds));
}

std::string TurnGuard::DescribeWait() const {
  MutexLock lock(&mu_);
  const absl::StatusOr<TurnTable> table = file_->board().Read();
  if (!table.ok()) return std::string(table.status().message());
  return DescribeTurnWait(*table, file_->board().own(), SteadyNow());
}

}  // namespace nereus
