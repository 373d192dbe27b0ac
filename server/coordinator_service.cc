#include "server/coordinator_service.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/messages.h"
#include "common/rpc/rpc_status.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"

namespace nereus {
namespace {

constexpr absl::Duration kTickInterval = absl::Seconds(1);

// One open Join call: writes events one after the other, then finishes. gRPC
// calls OnDone when nothing refers to it any more; then it deletes itself.
class JoinCall final : public grpc::ServerWriteReactor<v1::JoinEvent> {
 public:
  // `ended` is called when the call is over, whoever ended it.
  explicit JoinCall(std::function<void()> ended) : ended_(std::move(ended)) {}

  void Write(v1::JoinEvent event) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (finishing_) return;
    queue_.push_back(std::move(event));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  // Finishes once what is queued has been written.
  void End(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (finishing_) return;
    finishing_ = true;
    status_ = status;
    if (queue_.empty()) Finish(status_);
  }

 private:
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    queue_.pop_front();
    if (!ok) queue_.clear();
    if (!queue_.empty()) {
      StartWrite(&queue_.front());
    } else if (finishing_) {
      Finish(status_);
    }
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

  void OnDone() override {
    ended_();
    delete this;
  }

  const std::function<void()> ended_;
  Mutex mu_;
  std::deque<v1::JoinEvent> queue_ ABSL_GUARDED_BY(mu_);
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

struct CoordinatorService::Impl final {
  explicit Impl(const CoordinatorOptions& options)
      : coordinator(options),
        coordinator_rpc(this),
        admin_rpc(this),
        ticker([this] { RunTicks(); }) {}

  struct CoordinatorRpc final : v1::Coordinator::CallbackService {
    explicit CoordinatorRpc(Impl* impl) : impl(impl) {}
    grpc::ServerWriteReactor<v1::JoinEvent>* Join(
        grpc::CallbackServerContext*, const v1::JoinRequest* request) override;
    grpc::ServerUnaryReactor* SendHeartbeat(
        grpc::CallbackServerContext* context,
        const v1::HeartbeatRequest* request,
        v1::HeartbeatResponse* response) override;
    grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                    const v1::LeaveRequest* request,
                                    v1::LeaveResponse* response) override;
    Impl* const impl;
  };

  struct AdminRpc final : v1::Admin::CallbackService {
    explicit AdminRpc(Impl* impl) : impl(impl) {}
    grpc::ServerUnaryReactor* GetStatus(
        grpc::CallbackServerContext* context, const v1::GetStatusRequest*,
        v1::GetStatusResponse* response) override;
    Impl* const impl;
  };

  void RunTicks() ABSL_LOCKS_EXCLUDED(mu);
  void Carry(const CoordinatorOutbox& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void LogState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void JoinEnded(JoinId join) ABSL_LOCKS_EXCLUDED(mu);
  absl::StatusOr<JobVerdict> Beat(const v1::HeartbeatRequest& message)
      ABSL_LOCKS_EXCLUDED(mu);
  absl::Status Leave(const v1::LeaveRequest& message) ABSL_LOCKS_EXCLUDED(mu);

  Mutex mu;
  Coordinator coordinator ABSL_GUARDED_BY(mu);
  JobState logged_state ABSL_GUARDED_BY(mu) = JobState::kGathering;
  JoinId next_join ABSL_GUARDED_BY(mu) = 0;
  std::map<JoinId, JoinCall*> calls ABSL_GUARDED_BY(mu);
  bool stopping ABSL_GUARDED_BY(mu) = false;

  CoordinatorRpc coordinator_rpc;
  AdminRpc admin_rpc;
  std::thread ticker;  // Last: uses all of the above.
};

grpc::ServerWriteReactor<v1::JoinEvent>*
CoordinatorService::Impl::CoordinatorRpc::Join(grpc::CallbackServerContext*,
                                               const v1::JoinRequest* message) {
  const absl::StatusOr<JoinRequest> request = FromProto(*message);
  MutexLock lock(&impl->mu);
  const JoinId join = impl->next_join++;
  Impl* const owner = impl;
  auto* call = new JoinCall([owner, join] { owner->JoinEnded(join); });
  if (!request.ok() || impl->stopping) {
    call->End(ToGrpcStatus(request.ok()
                               ? absl::UnavailableError("shutting down")
                               : request.status()));
    return call;
  }
  impl->calls[join] = call;
  CoordinatorOutbox out;
  impl->coordinator.OnJoin(join, *request, SteadyNow(), out);
  impl->Carry(out);
  impl->LogState();
  return call;
}

grpc::ServerUnaryReactor*
CoordinatorService::Impl::CoordinatorRpc::SendHeartbeat(
    grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
    v1::HeartbeatResponse* response) {
  const absl::StatusOr<JobVerdict> verdict = impl->Beat(*request);
  if (verdict.ok()) *response = ToProto(*verdict);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(verdict.status()));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Impl::CoordinatorRpc::Leave(
    grpc::CallbackServerContext* context, const v1::LeaveRequest* request,
    v1::LeaveResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(impl->Leave(*request)));
  return reactor;
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

absl::StatusOr<JobVerdict> CoordinatorService::Impl::Beat(
    const v1::HeartbeatRequest& message) {
  NEREUS_ASSIGN_OR_RETURN(const Heartbeat heartbeat, FromProto(message));
  MutexLock lock(&mu);
  absl::StatusOr<JobVerdict> verdict =
      coordinator.OnHeartbeat(heartbeat, SteadyNow());
  LogState();
  return verdict;
}

absl::Status CoordinatorService::Impl::Leave(const v1::LeaveRequest& message) {
  NEREUS_ASSIGN_OR_RETURN(const PeerId member, FromProto(message.member()));
  MutexLock lock(&mu);
  NEREUS_RETURN_IF_ERROR(
      coordinator.OnLeave(message.job(), message.epoch(), member));
  NEREUS_LOG(Info) << PeerName(member) << " has left, its work done";
  LogState();
  return absl::OkStatus();
}

void CoordinatorService::Impl::JoinEnded(JoinId join) {
  MutexLock lock(&mu);
  calls.erase(join);
  coordinator.OnJoinCancelled(join);
}

void CoordinatorService::Impl::Carry(const CoordinatorOutbox& out) {
  for (const CoordinatorAction& action : out) {
    const JoinId join =
        std::visit([](const auto& typed) { return typed.join; }, action);
    const auto found = calls.find(join);
    if (found == calls.end()) continue;  // It went away; its end is on its way.
    JoinCall* const call = found->second;
    if (const auto* refused = std::get_if<RefuseJoin>(&action)) {
      NEREUS_LOG(Warning) << "refused to join: " << refused->why.message();
      call->End(ToGrpcStatus(refused->why));
    } else if (const auto* waiting = std::get_if<NotifyWaiting>(&action)) {
      v1::JoinEvent event;
      event.set_waiting(waiting->text);
      call->Write(std::move(event));
    } else if (const auto* admitted = std::get_if<AdmitMember>(&action)) {
      v1::JoinEvent event;
      *event.mutable_welcome() = ToProto(admitted->welcome);
      call->Write(std::move(event));
      call->End(grpc::Status::OK);
    }
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
    coordinator.OnTick(SteadyNow(), out);
    Carry(out);
    LogState();
  }
}

CoordinatorService::CoordinatorService(const CoordinatorOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}

CoordinatorService::~CoordinatorService() {
  CancelJoins();
  impl_->ticker.join();
}

std::vector<grpc::Service*> CoordinatorService::services() {
  return {&impl_->coordinator_rpc, &impl_->admin_rpc};
}

void CoordinatorService::CancelJoins() {
  MutexLock lock(&impl_->mu);
  impl_->stopping = true;
  for (const auto& [join, call] : impl_->calls) {
    call->End(ToGrpcStatus(absl::UnavailableError("shutting down")));
  }
}

void CoordinatorService::AwaitEveryoneKnows(absl::Duration timeout) {
  MutexLock lock(&impl_->mu);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mu) {
    return impl_->coordinator.everyone_knows();
  };
  impl_->mu.AwaitWithTimeout(done, timeout);
}

}  // namespace nereus
