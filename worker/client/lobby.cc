#include "worker/public/lobby.h"

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/identity.h"
#include "common/base/log_repeats.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/protocol/peer.h"
#include "common/rpc/session_client.h"
#include "worker/machine/lobby_ledger.h"

namespace nereus {
namespace {

// Time for which a process waits before its log warns of it.
constexpr absl::Duration kWarnAfter = absl::Seconds(10);

absl::Status ClosedError() {
  return FailedPreconditionError("the lobby was closed");
}

}  // namespace

// The threads of `session` run OnMessage and the other callbacks. They wake the
// caller's thread in Gather by the ledger, under the lock.
struct Lobby::Impl {
  Impl(const ClientOptions& options, LobbyGather process)
      : address(options.coordinator_address),
        ledger(std::move(process)),
        session({options.coordinator_address, options.connect_timeout,
                 options.connect_timeout},
                MakeEvents()) {}

  SessionClient::Events MakeEvents();
  // Returns the last value for a new session.
  LobbyGather OnSession() ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(&mu);
    return ledger.OnSession();
  }
  void OnMessage(const CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mu);
  // Logs what the process waits for.
  void LogWait(const std::string& text);
  // Begins a gathering, or goes on with the one that has begun.
  absl::Status Begin(absl::string_view value) ABSL_LOCKS_EXCLUDED(mu);
  // Waits for the answer.
  absl::StatusOr<std::vector<std::string>> Await(absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu);

  const std::string address;  // Address of the coordinator.

  Mutex mu;
  LobbyLedger ledger ABSL_GUARDED_BY(mu);
  bool is_started ABSL_GUARDED_BY(mu) = false;  // `session` has started.
  bool is_waiting ABSL_GUARDED_BY(mu) = false;  // A thread is in Gather.
  bool is_closed ABSL_GUARDED_BY(mu) = false;   // Close was called.

  LogRepeats repeats;  // Used by the thread of `session` only.

  SessionClient session;  // Last: its threads use the above.
};

SessionClient::Events Lobby::Impl::MakeEvents() {
  SessionClient::Events events;
  events.opened = [this] { session.Send(OnSession()); };
  events.message = [this](const CoordinatorMessage& message) {
    OnMessage(message);
  };
  events.heartbeat = [] { return std::nullopt; };
  events.failed = [this](const absl::Status& why) {
    MutexLock lock(&mu);
    ledger.End(why);
  };
  return events;
}

void Lobby::Impl::OnMessage(const CoordinatorMessage& message) {
  if (const auto* waiting = std::get_if<Waiting>(&message)) {
    LogWait(waiting->text);
  } else {
    repeats.Clear();
  }
  bool goes_on = true;
  {
    MutexLock lock(&mu);
    goes_on = ledger.OnMessage(message);
  }
  if (!goes_on) session.Stop();
}

void Lobby::Impl::LogWait(const std::string& text) {
  const auto lasts = repeats.Note(text, SteadyNow());
  if (!lasts.has_value()) return;
  WriteLog(*lasts >= kWarnAfter ? LogLevel::kWarning : LogLevel::kInfo,
           {LogEvent::kWaiting}, absl::StrCat(text, LastsText(*lasts)));
}

absl::Status Lobby::Impl::Begin(absl::string_view value) {
  std::optional<LobbyGather> message;
  bool starts = false;
  {
    MutexLock lock(&mu);
    if (is_closed) return ClosedError();
    if (is_waiting) {
      return FailedPreconditionError("another thread gathers in this lobby");
    }
    message = NEREUS_TRY(ledger.Begin(std::string(value)));
    is_waiting = true;
    starts = !std::exchange(is_started, true);
  }
  // Without an open session, the next session begins with this message.
  if (starts) {
    session.Start();
  } else if (message.has_value()) {
    session.Send(*message);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Lobby::Impl::Await(
    absl::Duration timeout) {
  MutexLock lock(&mu);
  mu.AwaitWithTimeout([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                          mu) { return ledger.is_done() || is_closed; },
                      timeout);
  is_waiting = false;
  if (ledger.is_done()) return ledger.Take();
  if (is_closed) return ClosedError();
  return DeadlineExceededError(
      "the gathering has not ended within ", absl::FormatDuration(timeout),
      ": ",
      ledger.waits_for().empty()
          ? absl::StrCat("no answer of the coordinator at ", address, " yet")
          : ledger.waits_for());
}

absl::StatusOr<std::unique_ptr<Lobby>> Lobby::Enter(
    const ClientOptions& options, int32_t count) {
  NEREUS_TRY(options.Validate());
  if (!options.rank.has_value()) {
    return InvalidArgumentError(
        "rank is not set, and a process gathers by its number among those that "
        "were started together: the variable NEREUS_RANK gives it, and "
        "`nereusctl run` sets that");
  }
  if (count < 1 || count > kRanksMax || *options.rank >= count) {
    return InvalidArgumentError("rank is ", *options.rank, " of ", count,
                                " processes, must be below their number, which "
                                "is at most ",
                                kRanksMax);
  }
  LobbyGather process;
  process.protocol_version = kProtocolVersion;
  process.build = kVersion;
  process.job = options.job;
  process.number = *options.rank;
  process.count = count;
  process.incarnation = DrawUniqueId();
  return std::unique_ptr<Lobby>(
      new Lobby(std::make_unique<Impl>(options, std::move(process))));
}

Lobby::Lobby(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Lobby::~Lobby() = default;

absl::StatusOr<std::vector<std::string>> Lobby::Gather(absl::string_view value,
                                                       absl::Duration timeout) {
  NEREUS_TRY(impl_->Begin(value));
  return impl_->Await(timeout);
}

void Lobby::Close() {
  MutexLock lock(&impl_->mu);
  impl_->is_closed = true;
}

}  // namespace nereus
