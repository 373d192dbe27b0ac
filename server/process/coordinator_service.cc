#include "server/process/coordinator_service.h"

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/messages/messages.h"
#include "common/messages/status_messages.h"
#include "common/rpc/rpc_status.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/coordinator/save_first.h"
#include "server/process/checkpoint_finisher.h"
#include "server/process/drain_calls.h"
#include "server/process/job_log.h"
#include "server/process/session_calls.h"
#include "server/process/trace_calls.h"

// The Coordinator gets five kinds of events, under one lock: a message of a
// session (Hear), a session's end (SessionEnded), a request for a checkpoint
// (RequestCheckpoint), the outcome of writing a manifest (OnCheckpoint), and
// time (RunTicks). Each event ends in Carry, which saves the state and then
// carries out the actions. GetStatus only reads.
//
//   gRPC threads --Hear--> Coordinator --> SaveFirst --> StateSaver
//   ticker ------OnTick-->     ^               '--> SessionCalls, log lines
//   CheckpointFinisher --------'               '--> CheckpointFinisher

namespace nereus {
namespace {

// Time between two calls of Coordinator::OnTick. Leases are much longer, so
// they end on time.
constexpr absl::Duration kTickInterval = absl::Milliseconds(200);

// Saves the job's state. While saves fail, SaveFirst tries again several times
// a second. So this logs only the first of several failures in a row, and the
// first success after them.
class StateSaver {
 public:
  StateSaver(JobStore* jobs, std::string job_name)
      : jobs_(jobs), job_name_(std::move(job_name)) {}

  absl::Status Save(const CoordinatorState& state) {
    if (jobs_ == nullptr) return absl::OkStatus();
    absl::Status saved = jobs_->Save(job_name_, state);
    if (!saved.ok() && !is_failing_) {
      NEREUS_LOG(Error, {LogEvent::kJobState})
          << "the job's state cannot be saved, and nothing of "
             "the job changes until it can: "
          << saved.message();
    } else if (saved.ok() && is_failing_) {
      NEREUS_LOG(Warning, {LogEvent::kJobState})
          << "the job's state is saved again";
    }
    is_failing_ = !saved.ok();
    return saved;
  }

 private:
  JobStore* const jobs_;  // Null: Save does nothing.
  const std::string job_name_;
  bool is_failing_ = false;  // True if the last Save failed.
};

}  // namespace

struct CoordinatorService::Impl final {
  Impl(const CoordinatorOptions& options, std::optional<CoordinatorState> saved,
       const CoordinatorDisk& disk)
      : lease(options.lease()),
        coordinator(saved.has_value()
                        ? Coordinator(options, *std::move(saved), SteadyNow())
                        : Coordinator(options)),
        sessions(
            [this](SessionId session, const v1::MemberMessage& message) {
              Hear(session, message);
            },
            [this](SessionId session) { SessionEnded(session); }),
        drains([this](DrainCall* call) {
          MutexLock lock(&mu);
          drains.Forget(call);
        }),
        traces([this](SessionId session, const CoordinatorMessage& message)
                   ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                       mu) { sessions.Write(session, ToProto(message)); },
               [this](TraceCall* call) {
                 MutexLock lock(&mu);
                 traces.Forget(call);
               }),
        saver(disk.jobs, options.spec.name),
        services{CoordinatorRpc(this), AdminRpc(this)},
        finisher(disk.checkpoints, disk.checkpoints_kept, options.spec.name,
                 [this](int64_t round, const absl::Status& written) {
                   OnCheckpoint(round, written);
                 }),
        ticker([this] { RunTicks(); }) {}

  // Coordinator service: one call for each session.
  struct CoordinatorRpc final : v1::Coordinator::CallbackService {
    explicit CoordinatorRpc(Impl* impl) : impl(impl) {}
    SessionCalls::Reactor* Attend(
        grpc::CallbackServerContext* context) override {
      MutexLock lock(&impl->mu);
      return impl->sessions.Open(context);
    }
    Impl* const impl;
  };

  // Admin service: calls of nereusctl.
  struct AdminRpc final : v1::Admin::CallbackService {
    explicit AdminRpc(Impl* impl) : impl(impl) {}
    grpc::ServerUnaryReactor* GetStatus(
        grpc::CallbackServerContext* context, const v1::GetStatusRequest*,
        v1::GetStatusResponse* response) override;
    grpc::ServerUnaryReactor* RequestCheckpoint(
        grpc::CallbackServerContext* context,
        const v1::RequestCheckpointRequest*,
        v1::RequestCheckpointResponse*) override;
    grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                    const v1::DrainRequest* request,
                                    v1::DrainResponse*) override;
    TraceCalls::Reactor* Trace(grpc::CallbackServerContext* context,
                               const v1::TraceRequest* request) override;
    Impl* const impl;
  };

  struct Services final {
    CoordinatorRpc coordinator;
    AdminRpc admin;
  };

  void Hear(SessionId session, const v1::MemberMessage& message)
      ABSL_LOCKS_EXCLUDED(mu);
  void SessionEnded(SessionId session) ABSL_LOCKS_EXCLUDED(mu);
  void RunTicks() ABSL_LOCKS_EXCLUDED(mu);
  // Saves states and carries out actions, in order. If a save fails, keeps the
  // rest for the next call.
  void Carry(CoordinatorOutbox out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void CarryOut(const CoordinatorAction& action)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // If saves have failed for longer than a lease, sets `failure`, which ends
  // AwaitEnd, and calls its function.
  void GiveUpIfNothingIsSaved(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void OnCheckpoint(int64_t round, const absl::Status& written)
      ABSL_LOCKS_EXCLUDED(mu);
  // True if the job is over, and this is saved.
  bool is_over() const ABSL_SHARED_LOCKS_REQUIRED(mu) {
    return coordinator.over() && actions.empty();
  }
  // Returns the job's status, with the last lines of the log.
  JobStatus Status() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const absl::Duration lease;  // Longest time for which saving may fail.

  Mutex mu;
  Coordinator coordinator ABSL_GUARDED_BY(mu);
  JobLog log ABSL_GUARDED_BY(mu);
  SessionCalls sessions ABSL_GUARDED_BY(mu);
  DrainCalls drains ABSL_GUARDED_BY(mu);
  TraceCalls traces ABSL_GUARDED_BY(mu);
  bool stopping ABSL_GUARDED_BY(mu) = false;  // Ends the ticker.
  // Actions that wait until the state is saved.
  SaveFirst actions ABSL_GUARDED_BY(mu);
  StateSaver saver ABSL_GUARDED_BY(mu);
  // Failure to go on.
  struct Failure {
    std::function<void(const absl::Status&)> tell;  // Caller of set_on_failure.
    // Not OK: AwaitEnd returns, because saving was given up or the wait was
    // interrupted.
    absl::Status why;
  };
  Failure failure ABSL_GUARDED_BY(mu);

  Services services;
  CheckpointFinisher finisher;  // Last two: their threads use the above.
  std::thread ticker;
};

void CoordinatorService::Impl::Hear(SessionId session,
                                    const v1::MemberMessage& proto) {
  const absl::StatusOr<MemberMessage> message = FromProto(proto);
  MutexLock lock(&mu);
  if (!sessions.Has(session)) return;
  if (!message.ok()) {
    log.Write({true,
               absl::StrCat("ended a session: ", message.status().message()),
               {LogEvent::kRefused}});
    sessions.Write(session,
                   ToProto(CoordinatorMessage(Refusal{message.status()})));
    return sessions.End(session);
  }
  CoordinatorOutbox out;
  coordinator.OnMessage(session, *message, SteadyNow(), out);
  Carry(std::move(out));
  traces.OnMessage(session, *message, coordinator, SteadyNow());
}

// The coordinator then decides how long the member may be without a session.
void CoordinatorService::Impl::SessionEnded(SessionId session) {
  MutexLock lock(&mu);
  sessions.Forget(session);
  traces.OnSessionEnd(session, SteadyNow());
  CoordinatorOutbox out;
  coordinator.OnSessionEnd(session, SteadyNow(), out);
  Carry(std::move(out));
}

grpc::ServerUnaryReactor* CoordinatorService::Impl::AdminRpc::GetStatus(
    grpc::CallbackServerContext* context, const v1::GetStatusRequest*,
    v1::GetStatusResponse* response) {
  {
    MutexLock lock(&impl->mu);
    *response = ToProto(impl->Status());
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

grpc::ServerUnaryReactor* CoordinatorService::Impl::AdminRpc::Drain(
    grpc::CallbackServerContext* context, const v1::DrainRequest* request,
    v1::DrainResponse*) {
  MutexLock lock(&impl->mu);
  CoordinatorOutbox out;
  const absl::Status status = impl->coordinator.departures().Ask(
      request->member(), impl->coordinator.state(), out);
  if (!status.ok()) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  grpc::ServerUnaryReactor* reactor = impl->drains.Open(request->member());
  impl->Carry(std::move(out));
  return reactor;
}

TraceCalls::Reactor* CoordinatorService::Impl::AdminRpc::Trace(
    grpc::CallbackServerContext* /*context*/, const v1::TraceRequest* request) {
  MutexLock lock(&impl->mu);
  return impl->traces.Open(*request, impl->coordinator, SteadyNow());
}

void CoordinatorService::Impl::GiveUpIfNothingIsSaved(absl::Time now) {
  if (actions.failing_for(now) <= lease || !failure.why.ok()) return;
  failure.why = UnavailableError(
      "the job's state could not be saved for ", absl::FormatDuration(lease),
      ": ", actions.failure().message(),
      ". This coordinator ends, so that one that can save takes its place");
  if (failure.tell != nullptr) failure.tell(failure.why);
}

void CoordinatorService::Impl::OnCheckpoint(int64_t round,
                                            const absl::Status& written) {
  MutexLock lock(&mu);
  CoordinatorOutbox out;
  coordinator.OnCheckpoint(round, written, SteadyNow(), out);
  Carry(std::move(out));
}

// When a save succeeds again after failures, members get the messages that were
// held back. So the time for their answers starts then (OnSavedAgain).
void CoordinatorService::Impl::Carry(CoordinatorOutbox out) {
  const bool was_held = !actions.empty();
  actions.CarryOut(
      std::move(out), SteadyNow(),
      [this](const CoordinatorState& state)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return saver.Save(state); },
      [this](const CoordinatorAction& action)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { CarryOut(action); });
  if (was_held && actions.empty()) coordinator.OnSavedAgain(SteadyNow());
  log.WriteState(coordinator.state(), coordinator.reason());
  if (!actions.empty()) return;
  drains.Answer([this](const std::string& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                    mu) {
    return coordinator.over() || !coordinator.departures().HasMember(member);
  });
}

void CoordinatorService::Impl::CarryOut(const CoordinatorAction& action) {
  if (const auto* announce = std::get_if<Announce>(&action)) {
    return log.Write(*announce);
  }
  if (const auto* complete = std::get_if<CompleteCheckpoint>(&action)) {
    finisher.Finish(*complete);
  } else if (const auto* send = std::get_if<SendToMember>(&action)) {
    sessions.Write(send->session, ToProto(send->message));
  } else {
    sessions.End(std::get<EndSession>(action).session);
  }
}

JobStatus CoordinatorService::Impl::Status() {
  JobStatus status = coordinator.Status(SteadyNow());
  status.events = log.events();
  return status;
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
    traces.OnTick(coordinator, now);
    GiveUpIfNothingIsSaved(now);
  }
}

CoordinatorService::CoordinatorService(const CoordinatorOptions& options,
                                       std::optional<CoordinatorState> saved,
                                       const CoordinatorDisk& disk)
    : impl_(std::make_unique<Impl>(options, std::move(saved), disk)) {}

// The destructor of Impl::finisher then finishes the queued checkpoints.
CoordinatorService::~CoordinatorService() {
  EndSessions();
  impl_->ticker.join();
}

absl::Status CoordinatorService::AwaitEnd() {
  MutexLock lock(&impl_->mu);
  impl_->mu.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mu) {
    // Waits on while the end of the job is not saved, because no member has
    // heard of it.
    return impl_->is_over() || !impl_->failure.why.ok();
  });
  if (!impl_->is_over()) return impl_->failure.why;
  return OutcomeOf({impl_->coordinator.state(), impl_->coordinator.reason()});
}

void CoordinatorService::Interrupt() {
  MutexLock lock(&impl_->mu);
  impl_->failure.why.Update(CancelledError("the wait was interrupted"));
}

CoordinatorService::Progress CoordinatorService::progress() const {
  MutexLock lock(&impl_->mu);
  if (impl_->is_over()) return Progress::kOver;
  return impl_->coordinator.departures().AllLeft() ? Progress::kEnding
                                                   : Progress::kGoesOn;
}

void CoordinatorService::set_on_failure(
    std::function<void(const absl::Status&)> on_failure) {
  MutexLock lock(&impl_->mu);
  impl_->failure.tell = std::move(on_failure);
}

JobStatus CoordinatorService::Status() const {
  MutexLock lock(&impl_->mu);
  return impl_->Status();
}

std::vector<grpc::Service*> CoordinatorService::services() {
  return {&impl_->services.coordinator, &impl_->services.admin};
}

void CoordinatorService::EndSessions() {
  MutexLock lock(&impl_->mu);
  impl_->stopping = true;
  impl_->sessions.EndAll();
  impl_->drains.EndAll();
  impl_->traces.EndAll();
}

bool CoordinatorService::lacks_last_checkpoint() const {
  MutexLock lock(&impl_->mu);
  return impl_->coordinator.lacks_last_checkpoint();
}

void CoordinatorService::AwaitMembersKnow(absl::Duration timeout) {
  MutexLock lock(&impl_->mu);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mu) {
    return impl_->coordinator.everyone_knows();
  };
  impl_->mu.AwaitWithTimeout(done, timeout);
}

}  // namespace nereus
