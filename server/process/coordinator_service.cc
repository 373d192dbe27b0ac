// The Coordinator gets five kinds of events, under one lock: a message of a
// session (Hear), a session's end (SessionEnded), a request for a checkpoint
// (RequestCheckpoint), the outcome of writing a manifest (OnCheckpoint), and
// time (RunTicks). Each event ends in Carry, which hands the actions to
// SaveFirst and carries out those that need not wait for a save. GetStatus only
// reads.
//
//   gRPC threads --Hear--> Coordinator --> SaveFirst --> SessionCalls, log
//   ticker ------OnTick-->     ^           ^  |  '-----> manifest_disk --.
//                              |           |  '--state-> state_disk      |
//                              |           '----OnSaved------'           |
//                              '--OnCheckpoint, OnSetAside---------------'
//
// Disks work on threads of their own, without the lock: while a disk hangs,
// members, calls and pages are served, and training goes on.

#include "server/process/coordinator_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
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
#include "server/process/checkpoint_files.h"
#include "server/process/disk_thread.h"
#include "server/process/session_calls.h"
#include "server/process/trace_calls.h"
#include "server/report/job_health.h"

namespace nereus {

namespace {

// Time between two calls of Coordinator::OnTick. Leases are much longer, so
// they end on time.
constexpr absl::Duration kTickInterval = absl::Milliseconds(200);

}  // namespace

struct CoordinatorService::Impl final {
  Impl(const CoordinatorOptions& options, std::optional<CoordinatorState> saved,
       const CoordinatorDisk& disk)
      : lease(options.lease()),
        job_name(options.spec.name),
        disk(disk),
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
        services{CoordinatorRpc(this), AdminRpc(this)},
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
  // Queues the actions of an event, and does what can be done now.
  void Carry(CoordinatorOutbox out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Carries out the actions that wait for no save, in order, and begins the
  // save that the others wait for.
  void GoOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void CarryOut(const CoordinatorAction& action)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Notes the outcome of a save.
  void OnSaved(const absl::Status& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // If nothing could be saved for too long, sets `failure`, which ends
  // AwaitEnd, and calls its function.
  void GiveUpIfNothingIsSaved(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Writes a manifest and removes old checkpoints, on manifest_disk.
  void Finish(const CompleteCheckpoint& complete)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Looks for a checkpoint in place of a damaged one, on manifest_disk.
  void SetAside(const SetCheckpointAside& damaged)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void OnSetAside(int64_t round,
                  const absl::StatusOr<CheckpointSetAside>& outcome)
      ABSL_LOCKS_EXCLUDED(mu);
  // Removes the manifest of an abandoned checkpoint, on manifest_disk.
  void Drop(const DropManifest& late) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Returns the operations of disks that take long.
  std::vector<JobStatus::DiskWait> DiskWaits()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Logs operations of disks that take long.
  void TellDiskWaits() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void OnCheckpoint(int64_t round, const absl::Status& written)
      ABSL_LOCKS_EXCLUDED(mu);
  // True if the job is over, and this is saved.
  bool is_over() const ABSL_SHARED_LOCKS_REQUIRED(mu) {
    return coordinator.over() && actions.empty();
  }
  // Returns the job's status, with the last lines of the log, as of `age` ago
  // or later.
  std::shared_ptr<const JobStatus> Status(absl::Duration age = kStatusAge)
      ABSL_LOCKS_EXCLUDED(mu);

  const absl::Duration lease;
  const std::string job_name;
  const CoordinatorDisk disk;

  Mutex mu;
  Coordinator coordinator ABSL_GUARDED_BY(mu);
  JobLog log ABSL_GUARDED_BY(mu);
  SessionCalls sessions ABSL_GUARDED_BY(mu);
  DrainCalls drains ABSL_GUARDED_BY(mu);
  TraceCalls traces ABSL_GUARDED_BY(mu);
  bool stopping ABSL_GUARDED_BY(mu) = false;  // Ends the ticker.
  // Actions that wait until the state is saved.
  SaveFirst actions ABSL_GUARDED_BY(mu);
  // Number of leases that the operation of each disk had taken when it was last
  // logged, by the name of the operation.
  std::map<std::string, int64_t> told_waits ABSL_GUARDED_BY(mu);
  // Failure to go on.
  struct Failure {
    std::function<void(const absl::Status&)> tell;  // Caller of set_on_failure.
    // Not OK: AwaitEnd returns, because saving was given up or the wait was
    // interrupted.
    absl::Status why;
  };
  Failure failure ABSL_GUARDED_BY(mu);
  // Last result of Status, and its time.
  std::shared_ptr<const JobStatus> status ABSL_GUARDED_BY(mu);
  absl::Time status_at ABSL_GUARDED_BY(mu) = absl::InfinitePast();

  Services services;
  DiskThread state_disk;  // Last three: their threads use the above.
  DiskThread manifest_disk;
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
  *response = ToProto(*impl->Status());
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
  const absl::Status status = impl->coordinator.Drain(request->member(), out);
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
  if (!actions.IsHopeless(lease, now) || !failure.why.ok()) return;
  const absl::Status& error = actions.failure();
  failure.why = UnavailableError(
      "the job's state could not be saved for ",
      absl::FormatDuration(
          absl::Trunc(actions.unsaved_for(now), absl::Milliseconds(100))),
      ": ",
      error.ok() ? absl::string_view("the disk does not answer")
                 : error.message(),
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

void CoordinatorService::Impl::Carry(CoordinatorOutbox out) {
  actions.Add(std::move(out));
  GoOn();
}

void CoordinatorService::Impl::GoOn() {
  while (true) {
    while (const auto action = actions.Next()) CarryOut(*action);
    auto state = actions.BeginSave(SteadyNow());
    if (state == nullptr) break;
    if (disk.jobs == nullptr) {
      OnSaved(absl::OkStatus());
      continue;
    }
    state_disk.Add("saving the job's state",
                   [this, jobs = disk.jobs, name = job_name,
                    state = std::move(state)]() -> DiskThread::Report {
                     return [this, outcome = jobs->Save(name, *state)] {
                       MutexLock lock(&mu);
                       OnSaved(outcome);
                       GoOn();
                     };
                   });
    break;
  }
  if (!actions.empty()) return;
  log.WriteState(coordinator.state(), coordinator.reason());
  drains.Answer(
      [this](const std::string& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
        return coordinator.over() || !coordinator.HasMember(member);
      });
}

// Logs only the first of several failures in a row, and the first success after
// them.
void CoordinatorService::Impl::OnSaved(const absl::Status& outcome) {
  const bool was_failing = !actions.failure().ok();
  actions.OnSaved(outcome, SteadyNow());
  coordinator.OnHeldBack(SteadyNow());
  if (!outcome.ok() && !was_failing) {
    NEREUS_LOG(Error, {LogEvent::kDisk})
        << "the job's state cannot be saved, and nothing of the job changes "
           "until it can: "
        << outcome.message();
  } else if (outcome.ok() && was_failing) {
    NEREUS_LOG(Warning, {LogEvent::kDisk}) << "the job's state is saved again";
  }
}

void CoordinatorService::Impl::CarryOut(const CoordinatorAction& action) {
  if (const auto* announce = std::get_if<Announce>(&action)) {
    return log.Write(*announce);
  }
  if (const auto* complete = std::get_if<CompleteCheckpoint>(&action)) {
    Finish(*complete);
  } else if (const auto* damaged = std::get_if<SetCheckpointAside>(&action)) {
    SetAside(*damaged);
  } else if (const auto* late = std::get_if<DropManifest>(&action)) {
    Drop(*late);
  } else if (const auto* send = std::get_if<SendToMember>(&action)) {
    sessions.Write(send->session, ToProto(send->message));
  } else {
    sessions.End(std::get<EndSession>(action).session);
  }
}

void CoordinatorService::Impl::Finish(const CompleteCheckpoint& complete) {
  manifest_disk.Add(
      absl::StrCat("writing the manifest of round ", complete.record.round),
      [this, complete, storage = disk.checkpoints, kept = disk.checkpoints_kept,
       name = job_name]() -> DiskThread::Report {
        const absl::Status written =
            FinishCheckpoint(*storage, kept, name, complete);
        return [this, written, round = complete.record.round] {
          OnCheckpoint(round, written);
        };
      });
}

void CoordinatorService::Impl::SetAside(const SetCheckpointAside& damaged) {
  manifest_disk.Add(
      absl::StrCat("setting aside the damaged checkpoint of round ",
                   damaged.round),
      [this, damaged, storage = disk.checkpoints]() -> DiskThread::Report {
        const absl::StatusOr<CheckpointSetAside> outcome =
            SetDamagedAside(*storage, *damaged.job, damaged.round);
        return [this, outcome, round = damaged.round] {
          OnSetAside(round, outcome);
        };
      });
}

void CoordinatorService::Impl::OnSetAside(
    int64_t round, const absl::StatusOr<CheckpointSetAside>& outcome) {
  MutexLock lock(&mu);
  CoordinatorOutbox out;
  coordinator.OnSetAside(round, outcome, SteadyNow(), out);
  Carry(std::move(out));
}

void CoordinatorService::Impl::Drop(const DropManifest& late) {
  manifest_disk.Add(
      absl::StrCat("removing the late manifest of round ", late.record.round),
      [late, storage = disk.checkpoints]() -> DiskThread::Report {
        const absl::Status dropped = DropLateManifest(*storage, late.record);
        if (!dropped.ok()) {
          NEREUS_LOG(Warning, {LogEvent::kCheckpoint, late.record.round})
              << "the late manifest of round " << late.record.round
              << " is not removed: " << dropped.message();
        }
        return [] {};
      });
}

std::vector<JobStatus::DiskWait> CoordinatorService::Impl::DiskWaits() {
  std::vector<JobStatus::DiskWait> waits;
  const absl::Duration unsaved = actions.unsaved_for(SteadyNow());
  if (unsaved > lease || !actions.failure().ok()) {
    waits.push_back({"saving the job's state", unsaved,
                     std::string(actions.failure().message()),
                     actions.messages()});
  }
  const auto manifest = manifest_disk.running();
  if (manifest.has_value() && manifest->time > lease) {
    waits.push_back({manifest->what, manifest->time, "", 0});
  }
  return waits;
}

// Logs each wait at its first whole lease, and then as it becomes twice as
// long. OnSaved logs failures.
void CoordinatorService::Impl::TellDiskWaits() {
  std::map<std::string, int64_t> told;
  for (const JobStatus::DiskWait& wait : DiskWaits()) {
    const auto leases = static_cast<int64_t>(wait.time / lease);
    const int64_t before = told_waits[wait.what];
    const bool is_due = leases >= std::max<int64_t>(1, 2 * before);
    if (is_due && wait.error.empty()) {
      log.Write({true, DescribeDiskWait(wait), {LogEvent::kDisk}});
    }
    told[wait.what] = is_due ? leases : before;
  }
  for (const auto& [what, leases] : told_waits) {
    if (leases == 0 || told.contains(what)) continue;
    log.Write({false,
               absl::StrCat("the disk is done with ", what),
               {LogEvent::kDisk}});
  }
  told_waits = std::move(told);
}

std::shared_ptr<const JobStatus> CoordinatorService::Impl::Status(
    absl::Duration age) {
  MutexLock lock(&mu);
  const absl::Time now = SteadyNow();
  if (now - status_at > age || age == absl::ZeroDuration()) {
    JobStatus made = coordinator.Status(now);
    made.events = log.events();
    made.disk_waits = DiskWaits();
    status = std::make_shared<const JobStatus>(std::move(made));
    status_at = now;
  }
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
    if (actions.messages() > 0) coordinator.OnHeldBack(now);
    coordinator.OnTick(now, out);
    Carry(std::move(out));
    traces.OnTick(coordinator, now);
    TellDiskWaits();
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
  impl_->manifest_disk.Finish(impl_->lease);
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
  return impl_->coordinator.roster().AllLeft() ? Progress::kEnding
                                               : Progress::kGoesOn;
}

void CoordinatorService::set_on_failure(
    std::function<void(const absl::Status&)> on_failure) {
  MutexLock lock(&impl_->mu);
  impl_->failure.tell = std::move(on_failure);
}

JobStatus CoordinatorService::Status(absl::Duration age) const {
  return *impl_->Status(age);
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

void JobLog::Write(const Announce& line) {
  const LogLevel level = line.bad ? LogLevel::kWarning : LogLevel::kInfo;
  std::optional<absl::Duration> lasts = absl::ZeroDuration();
  if (line.fields.event == LogEvent::kRefused) {
    lasts = refusals_.Note(line.text, SteadyNow());
  }
  if (!lasts.has_value()) return;
  if (line.fields.epoch >= 0) {
    ChangeLogContext(
        [&](LogContext& context) { context.epoch = line.fields.epoch; });
  }
  const std::string text = absl::StrCat(line.text, LastsText(*lasts));
  WriteLog(level, line.fields, text);
  events_.push_back(
      {absl::Now(), line.bad, text, line.fields.event, line.fields.member});
  if (std::ssize(events_) > kStatusEventsMax) events_.pop_front();
}

void JobLog::WriteState(JobState state, const std::string& reason) {
  if (state == std::exchange(state_, state)) return;
  Write({false,
         absl::StrCat("job ", JobStateName(state), reason.empty() ? "" : ": ",
                      reason),
         {LogEvent::kJobState}});
}

// A call that waits for `member` to leave. gRPC calls OnDone last of all, once
// the call was finished.
class DrainCall final : public grpc::ServerUnaryReactor {
 public:
  DrainCall(std::string member, std::function<void(DrainCall*)> cancelled)
      : member_(std::move(member)), cancelled_(std::move(cancelled)) {}

  const std::string& member() const { return member_; }

 private:
  void OnCancel() override { cancelled_(this); }
  void OnDone() override { delete this; }

  const std::string member_;
  const std::function<void(DrainCall*)> cancelled_;
};

grpc::ServerUnaryReactor* DrainCalls::Open(std::string member) {
  auto* call = new DrainCall(std::move(member), cancelled_);
  if (stopping_) {
    call->Finish(ToGrpcStatus(UnavailableError("shutting down")));
  } else {
    calls_.push_back(call);
  }
  return call;
}

void DrainCalls::Answer(
    const std::function<bool(const std::string&)>& has_left) {
  std::erase_if(calls_, [&](DrainCall* call) {
    if (!has_left(call->member())) return false;
    call->Finish(grpc::Status::OK);
    return true;
  });
}

void DrainCalls::EndAll() {
  stopping_ = true;
  for (DrainCall* call : std::exchange(calls_, {})) {
    call->Finish(ToGrpcStatus(UnavailableError("shutting down")));
  }
}

void DrainCalls::Forget(DrainCall* call) {
  if (std::erase(calls_, call) > 0) call->Finish(grpc::Status::CANCELLED);
}

}  // namespace nereus
