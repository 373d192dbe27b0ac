#include "server/process/starting_service.h"

#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/messages/messages.h"
#include "common/rpc/rpc_status.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/process/session_calls.h"

namespace nereus {
namespace {

// Least time between two texts for a session.
constexpr absl::Duration kTellInterval = absl::Seconds(3);

using CoordinatorRpcs = v1::Coordinator::CallbackService;
using AdminRpcs = v1::Admin::CallbackService;

// Call of Admin.Trace that ends at once with an error. It deletes itself when
// gRPC has finished with it.
class RefusedTrace final : public grpc::ServerWriteReactor<v1::TraceReply> {
 public:
  explicit RefusedTrace(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context,
                                 const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace

struct StartingService::Impl final {
  Impl()
      : sessions([this](SessionId session,
                        const v1::MemberMessage&) { Answer(session); },
                 [this](SessionId session) {
                   MutexLock lock(&mu);
                   sessions.Forget(session);
                 }),
        coordinator_rpc(this),
        admin_rpc(this) {}

  struct CoordinatorRpc final : CoordinatorRpcs {
    explicit CoordinatorRpc(Impl* impl) : impl(impl) {}
    SessionCalls::Reactor* Attend(
        grpc::CallbackServerContext* context) override;
    Impl* const impl;
  };

  struct AdminRpc final : AdminRpcs {
    explicit AdminRpc(Impl* impl) : impl(impl) {}
    grpc::ServerUnaryReactor* GetStatus(
        grpc::CallbackServerContext* context,
        const v1::GetStatusRequest* request,
        v1::GetStatusResponse* response) override;
    grpc::ServerUnaryReactor* RequestCheckpoint(
        grpc::CallbackServerContext* context,
        const v1::RequestCheckpointRequest* request,
        v1::RequestCheckpointResponse* response) override;
    grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                    const v1::DrainRequest* request,
                                    v1::DrainResponse* response) override;
    grpc::ServerWriteReactor<v1::TraceReply>* Trace(
        grpc::CallbackServerContext* context,
        const v1::TraceRequest* request) override;
    Impl* const impl;
  };

  // Tells one session what it waits for.
  void Answer(SessionId session) ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(&mu);
    sessions.Write(session, ToProto(CoordinatorMessage(Waiting{text})));
  }
  // Returns the Admin service of the coordinator; null: there is none yet.
  AdminRpcs* admin() ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(&mu);
    return its_admin;
  }
  // Returns the error of an Admin call that comes too early.
  grpc::Status TooEarly() ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(&mu);
    return ToGrpcStatus(UnavailableError("the coordinator starts: ", text));
  }

  Mutex mu;
  SessionCalls sessions ABSL_GUARDED_BY(mu);  // Sessions that wait.
  std::string text ABSL_GUARDED_BY(mu) = "the coordinator starts";
  absl::Time told_at ABSL_GUARDED_BY(mu) = absl::InfinitePast();
  // Services of the coordinator; null before HandOver. Not owned.
  CoordinatorRpcs* its_coordinator ABSL_GUARDED_BY(mu) = nullptr;
  AdminRpcs* its_admin ABSL_GUARDED_BY(mu) = nullptr;

  CoordinatorRpc coordinator_rpc;
  AdminRpc admin_rpc;
};

SessionCalls::Reactor* StartingService::Impl::CoordinatorRpc::Attend(
    grpc::CallbackServerContext* context) {
  CoordinatorRpcs* its_coordinator = nullptr;
  {
    MutexLock lock(&impl->mu);
    its_coordinator = impl->its_coordinator;
    if (its_coordinator == nullptr) return impl->sessions.Open(context);
  }
  return its_coordinator->Attend(context);
}

grpc::ServerUnaryReactor* StartingService::Impl::AdminRpc::GetStatus(
    grpc::CallbackServerContext* context, const v1::GetStatusRequest* request,
    v1::GetStatusResponse* response) {
  AdminRpcs* const admin = impl->admin();
  return admin == nullptr ? Refuse(context, impl->TooEarly())
                          : admin->GetStatus(context, request, response);
}

grpc::ServerUnaryReactor* StartingService::Impl::AdminRpc::RequestCheckpoint(
    grpc::CallbackServerContext* context,
    const v1::RequestCheckpointRequest* request,
    v1::RequestCheckpointResponse* response) {
  AdminRpcs* const admin = impl->admin();
  return admin == nullptr
             ? Refuse(context, impl->TooEarly())
             : admin->RequestCheckpoint(context, request, response);
}

grpc::ServerUnaryReactor* StartingService::Impl::AdminRpc::Drain(
    grpc::CallbackServerContext* context, const v1::DrainRequest* request,
    v1::DrainResponse* response) {
  AdminRpcs* const admin = impl->admin();
  return admin == nullptr ? Refuse(context, impl->TooEarly())
                          : admin->Drain(context, request, response);
}

grpc::ServerWriteReactor<v1::TraceReply>*
StartingService::Impl::AdminRpc::Trace(grpc::CallbackServerContext* context,
                                       const v1::TraceRequest* request) {
  AdminRpcs* const admin = impl->admin();
  if (admin == nullptr) return new RefusedTrace(impl->TooEarly());
  return admin->Trace(context, request);
}

StartingService::StartingService() : impl_(std::make_unique<Impl>()) {}

StartingService::~StartingService() = default;

std::vector<grpc::Service*> StartingService::services() {
  return {&impl_->coordinator_rpc, &impl_->admin_rpc};
}

void StartingService::Tell(const std::string& text) {
  MutexLock lock(&impl_->mu);
  impl_->text = text;
  const absl::Time now = SteadyNow();
  if (now - impl_->told_at < kTellInterval) return;
  impl_->told_at = now;
  impl_->sessions.WriteAll(ToProto(CoordinatorMessage(Waiting{text})));
}

void StartingService::HandOver(const std::vector<grpc::Service*>& services) {
  MutexLock lock(&impl_->mu);
  for (grpc::Service* const service : services) {
    if (auto* const rpcs = dynamic_cast<CoordinatorRpcs*>(service)) {
      impl_->its_coordinator = rpcs;
    } else if (auto* const rpcs = dynamic_cast<AdminRpcs*>(service)) {
      impl_->its_admin = rpcs;
    }
  }
  NEREUS_CHECK(impl_->its_coordinator != nullptr && impl_->its_admin != nullptr)
      << services.size();
  impl_->sessions.EndAll("the coordinator has started: come again");
}

}  // namespace nereus
