#include "server/process/coordinator_service.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/checkpoint/checkpoint.h"
#include "common/messages/messages.h"
#include "common/messages/status_messages.h"
#include "common/rpc/control_channel.h"
#include "common/rpc/rpc_status.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/coordinator/save_first.h"
#include "server/process/checkpoint_files.h"

namespace nereus {
namespace {

constexpr absl::Duration kTickInterval = absl::Milliseconds(200);

// One open session: reads and writes messages one after the other, then
// finishes. gRPC calls OnDone when nothing refers to it any more; then it
// deletes itself.
class SessionCall final
    : public grpc::ServerBidiReactor<v1::MemberMessage,
                                     v1::CoordinatorMessage> {
 public:
  // `heard` is called for each message, `ended` when the call is over, whoever
  // ended it.
  SessionCall(std::function<void(const v1::MemberMessage&)> heard,
              std::function<void()> ended)
      : heard_(std::move(heard)), ended_(std::move(ended)) {}

  // Accepts the session, and reads.
  void Start() {
    StartSendInitialMetadata();
    StartRead(&incoming_);
  }

  void Write(v1::CoordinatorMessage message) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (finishing_) return;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  // Finishes once what is queued has been written.
  void End(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (finishing_) return;
    finishing_ = true;
    status_ = status;
    if (queue_.empty()) DoFinish();
  }

 private:
  void DoFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    finished_ = true;
    Finish(status_);
  }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (!ok) return End(grpc::Status::OK);  // The member has gone.
    heard_(incoming_);
    MutexLock lock(&mu_);
    if (!finished_) StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    queue_.pop_front();
    if (!ok) queue_.clear();
    if (!queue_.empty()) {
      StartWrite(&queue_.front());
    } else if (finishing_) {
      DoFinish();
    }
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

  void OnDone() override {
    ended_();
    delete this;
  }

  const std::function<void(const v1::MemberMessage&)> heard_;
  const std::function<void()> ended_;
  v1::MemberMessage incoming_;  // The read's.
  Mutex mu_;
  std::deque<v1::CoordinatorMessage> queue_ ABSL_GUARDED_BY(mu_);
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;  // Nothing more is queued.
  bool finished_ ABSL_GUARDED_BY(mu_) = false;   // gRPC has been told.
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

struct CoordinatorService::Impl final {
  Impl(const CoordinatorOptions& options, std::optional<CoordinatorState> saved,
       const CoordinatorDisk& disk)
      : disk(disk),
        job_name(options.spec.name),
        lease(options.lease()),
        coordinator(saved.has_value()
                        ? Coordinator(options, *std::move(saved), SteadyNow())
                        : Coordinator(options)),
        coordinator_rpc(this),
        admin_rpc(this),
        ticker([this] { RunTicks(); }),
        finisher([this] { CompleteCheckpoints(); }) {}

  struct CoordinatorRpc final : v1::Coordinator::CallbackService {
    explicit CoordinatorRpc(Impl* impl) : impl(impl) {}
    grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>* Attend(
        grpc::CallbackServerContext* context) override {
      return impl->OpenSession(context);
    }
    Impl* const impl;
  };

  struct AdminRpc final : v1::Admin::CallbackService {
    explicit AdminRpc(Impl* impl) : impl(impl) {}
    grpc::ServerUnaryReactor* GetStatus(
        grpc::CallbackServerContext* context, const v1::GetStatusRequest*,
        v1::GetStatusResponse* response) override;
    grpc::ServerUnaryReactor* RequestCheckpoint(
        grpc::CallbackServerContext* context,
        const v1::RequestCheckpointRequest*,
        v1::RequestCheckpointResponse*) override;
    Impl* const impl;
  };

  SessionCall* OpenSession(grpc::CallbackServerContext* context)
      ABSL_LOCKS_EXCLUDED(mu);
  void Hear(SessionId session, const v1::MemberMessage& message)
      ABSL_LOCKS_EXCLUDED(mu);
  void SessionEnded(SessionId session) ABSL_LOCKS_EXCLUDED(mu);
  void RunTicks() ABSL_LOCKS_EXCLUDED(mu);
  void Carry(CoordinatorOutbox out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void CarryOut(const CoordinatorAction& action)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  absl::Status Save(const CoordinatorState& state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Ends this process's part if no state could be saved for a lease.
  void GiveUpIfNothingIsSaved(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void CompleteCheckpoints() ABSL_LOCKS_EXCLUDED(mu);
  void LogState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const CoordinatorDisk disk;
  const std::string job_name;
  const absl::Duration lease;

  Mutex mu;
  Coordinator coordinator ABSL_GUARDED_BY(mu);
  JobState logged_state ABSL_GUARDED_BY(mu) = JobState::kGathering;
  SessionId next_session ABSL_GUARDED_BY(mu) = 0;
  std::map<SessionId, SessionCall*> calls ABSL_GUARDED_BY(mu);
  bool stopping ABSL_GUARDED_BY(mu) = false;
  SaveFirst actions ABSL_GUARDED_BY(mu);
  std::function<void(const absl::Status&)> on_failure ABSL_GUARDED_BY(mu);
  bool save_complained ABSL_GUARDED_BY(mu) = false;
  absl::Status failure ABSL_GUARDED_BY(mu);  // Not OK: nothing is saved.
  std::deque<CompleteCheckpoint> complete ABSL_GUARDED_BY(mu);

  CoordinatorRpc coordinator_rpc;
  AdminRpc admin_rpc;
  std::thread ticker;  // Last, both: they use all of the above.
  std::thread finisher;
};

SessionCall* CoordinatorService::Impl::OpenSession(
    grpc::CallbackServerContext* context) {
  MutexLock lock(&mu);
  const SessionId session = next_session++;
  auto* call = new SessionCall(
      [this, session](const v1::MemberMessage& message) {
        Hear(session, message);
      },
      [this, session] { SessionEnded(session); });
  calls[session] = call;
  if (stopping) {
    call->End(ToGrpcStatus(absl::UnavailableError("shutting down")));
  } else {
    context->AddInitialMetadata(kSessionHeader, "open");
    call->Start();
  }
  return call;
}

void CoordinatorService::Impl::Hear(SessionId session,
                                    const v1::MemberMessage& proto) {
  const absl::StatusOr<MemberMessage> message = FromProto(proto);
  MutexLock lock(&mu);
  const auto found = calls.find(session);
  if (found == calls.end()) return;
  if (!message.ok()) {
    NEREUS_LOG(Warning) << "ended a session: " << message.status().message();
    found->second->Write(
        ToProto(CoordinatorMessage(Refusal{message.status()})));
    found->second->End(grpc::Status::OK);
    return;
  }
  CoordinatorOutbox out;
  coordinator.OnMessage(session, *message, SteadyNow(), out);
  Carry(std::move(out));
}

void CoordinatorService::Impl::SessionEnded(SessionId session) {
  MutexLock lock(&mu);
  calls.erase(session);
  CoordinatorOutbox out;
  coordinator.OnSessionEnd(session, SteadyNow(), out);
  Carry(std::move(out));
}

grpc::ServerUnaryReactor* CoordinatorService::Impl::AdminRpc::GetStatus(
    grpc::CallbackServerContext* context, const v1::GetStatusRequest*,
    v1::GetStatusResponse* response) {
  {
    MutexLock lock(&impl->mu);
    *response = ToProto(impl->coordinator.Status(SteadyNow()));
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Impl::AdminRpc::RequestCheckpoint(
    grpc::CallbackServerContext* context, const v1::RequestCheckpointRequest*,
    v1::RequestCheckpointResponse*) {
  absl::Status status;
  {
    MutexLock lock(&impl->mu);
    CoordinatorOutbox out;
    status = impl->coordinator.RequestCheckpoint(SteadyNow(), out);
    impl->Carry(std::move(out));
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

absl::Status CoordinatorService::Impl::Save(const CoordinatorState& state) {
  if (disk.jobs == nullptr) return absl::OkStatus();
  absl::Status saved = disk.jobs->Save(job_name, state);
  if (!saved.ok() && !save_complained) {
    NEREUS_LOG(Error) << "the job's state cannot be saved, and nothing of the "
                         "job changes until it can: "
                      << saved.message();
  } else if (saved.ok() && save_complained) {
    NEREUS_LOG(Warning) << "the job's state is saved again";
  }
  save_complained = !saved.ok();
  return saved;
}

void CoordinatorService::Impl::GiveUpIfNothingIsSaved(absl::Time now) {
  if (actions.failing_for(now) <= lease || !failure.ok()) return;
  failure = absl::UnavailableError(absl::StrCat(
      "the job's state could not be saved for ", absl::FormatDuration(lease),
      ": ", actions.failure().message(),
      ". This coordinator ends, so that one that can save takes its place"));
  if (on_failure != nullptr) on_failure(failure);
}

void CoordinatorService::Impl::CompleteCheckpoints() {
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return stopping || !complete.empty();
  };
  while (true) {
    std::optional<CompleteCheckpoint> next;
    {
      MutexLock lock(&mu);
      mu.Await(due);
      if (complete.empty()) return;
      next = std::move(complete.front());
      complete.pop_front();
    }
    const absl::Status written = WriteWhole(*disk.checkpoints, job_name, *next);
    if (written.ok()) {
      const absl::Status removed =
          KeepLast(*disk.checkpoints, disk.checkpoints_kept);
      if (!removed.ok()) {
        NEREUS_LOG(Warning)
            << "older checkpoints are not all removed: " << removed.message();
      }
    }
    MutexLock lock(&mu);
    CoordinatorOutbox out;
    coordinator.OnCheckpoint(next->record.round, written, SteadyNow(), out);
    Carry(std::move(out));
  }
}

void CoordinatorService::Impl::Carry(CoordinatorOutbox out) {
  const bool was_held = !actions.empty();
  actions.CarryOut(
      std::move(out), SteadyNow(),
      [this](const CoordinatorState& state)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return Save(state); },
      [this](const CoordinatorAction& action)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { CarryOut(action); });
  if (was_held && actions.empty()) coordinator.OnSavedAgain(SteadyNow());
  LogState();
}

void CoordinatorService::Impl::CarryOut(const CoordinatorAction& action) {
  if (const auto* announce = std::get_if<Announce>(&action)) {
    if (announce->bad) {
      NEREUS_LOG(Warning) << announce->text;
    } else {
      NEREUS_LOG(Info) << announce->text;
    }
    return;
  }
  if (const auto* whole = std::get_if<CompleteCheckpoint>(&action)) {
    complete.push_back(*whole);
    return;
  }
  const auto* send = std::get_if<SendToMember>(&action);
  const SessionId session =
      send != nullptr ? send->session : std::get<EndSession>(action).session;
  const auto found = calls.find(session);
  if (found == calls.end()) return;  // Its end is on its way.
  if (send != nullptr) {
    found->second->Write(ToProto(send->message));
  } else {
    found->second->End(grpc::Status::OK);
  }
}

void CoordinatorService::Impl::LogState() {
  if (coordinator.state() == logged_state) return;
  logged_state = coordinator.state();
  NEREUS_LOG(Info) << "job " << JobStateName(logged_state)
                   << (coordinator.reason().empty() ? "" : ": ")
                   << coordinator.reason();
}

void CoordinatorService::Impl::RunTicks() {
  MutexLock lock(&mu);
  while (!stopping) {
    mu.AwaitWithTimeout(
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return stopping; },
        kTickInterval);
    CoordinatorOutbox out;
    const absl::Time now = SteadyNow();
    coordinator.OnTick(now, out);
    Carry(std::move(out));
    GiveUpIfNothingIsSaved(now);
  }
}

CoordinatorService::CoordinatorService(const CoordinatorOptions& options,
                                       std::optional<CoordinatorState> saved,
                                       const CoordinatorDisk& disk)
    : impl_(std::make_unique<Impl>(options, std::move(saved), disk)) {}

CoordinatorService::~CoordinatorService() {
  EndSessions();
  impl_->ticker.join();
  impl_->finisher.join();
}

absl::Status CoordinatorService::AwaitEnd() {
  MutexLock lock(&impl_->mu);
  impl_->mu.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mu) {
    // Nobody has heard of an end that is not saved.
    const bool over = impl_->coordinator.over() && impl_->actions.empty();
    return over || !impl_->failure.ok();
  });
  if (!impl_->failure.ok()) return impl_->failure;
  if (impl_->coordinator.state() == JobState::kFinished) {
    return absl::OkStatus();
  }
  return absl::AbortedError(
      absl::StrCat("the job failed: ", impl_->coordinator.reason()));
}

void CoordinatorService::set_on_failure(
    std::function<void(const absl::Status&)> on_failure) {
  MutexLock lock(&impl_->mu);
  impl_->on_failure = std::move(on_failure);
}

std::vector<grpc::Service*> CoordinatorService::services() {
  return {&impl_->coordinator_rpc, &impl_->admin_rpc};
}

void CoordinatorService::EndSessions() {
  MutexLock lock(&impl_->mu);
  impl_->stopping = true;
  for (const auto& [session, call] : impl_->calls) {
    call->End(ToGrpcStatus(absl::UnavailableError("shutting down")));
  }
}

bool CoordinatorService::lacks_last_checkpoint() const {
  MutexLock lock(&impl_->mu);
  return impl_->coordinator.lacks_last_checkpoint();
}

void CoordinatorService::AwaitEveryoneKnows(absl::Duration timeout) {
  MutexLock lock(&impl_->mu);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mu) {
    return impl_->coordinator.everyone_knows();
  };
  impl_->mu.AwaitWithTimeout(done, timeout);
}

}  // namespace nereus
