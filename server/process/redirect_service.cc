#include "server/process/redirect_service.h"

#include <grpcpp/grpcpp.h>

#include "common/base/status.h"
#include "common/rpc/rpc_status.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"

namespace nereus {
namespace {

// Returns the error that every call gets.
grpc::Status Elsewhere(const std::string& coordinator_address) {
  return ToGrpcStatus(FailedPreconditionError(
      "this shard does not coordinate the job: ask ", coordinator_address));
}

// A call of Admin.Trace that ends at once with an error. It deletes itself when
// gRPC has finished with it.
class RefusedTrace final : public grpc::ServerWriteReactor<v1::TraceReply> {
 public:
  explicit RefusedTrace(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Admin service that refuses every call.
class AdminRedirect final : public v1::Admin::CallbackService {
 public:
  explicit AdminRedirect(const std::string& address) : address_(address) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest*,
                                      v1::GetStatusResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(Elsewhere(address_));
    return reactor;
  }
  grpc::ServerUnaryReactor* RequestCheckpoint(
      grpc::CallbackServerContext* context, const v1::RequestCheckpointRequest*,
      v1::RequestCheckpointResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(Elsewhere(address_));
    return reactor;
  }
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest*,
                                  v1::DrainResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(Elsewhere(address_));
    return reactor;
  }
  grpc::ServerWriteReactor<v1::TraceReply>* Trace(
      grpc::CallbackServerContext* /*context*/,
      const v1::TraceRequest*) override {
    return new RefusedTrace(Elsewhere(address_));
  }

 private:
  const std::string address_;
};

// A session that ends at once with an error. It deletes itself when gRPC has
// finished with it.
class RefusedSession final
    : public grpc::ServerBidiReactor<v1::MemberMessage,
                                     v1::CoordinatorMessage> {
 public:
  explicit RefusedSession(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Coordinator service that refuses every session.
class SessionRedirect final : public v1::Coordinator::CallbackService {
 public:
  explicit SessionRedirect(const std::string& address) : address_(address) {}

  grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>* Attend(
      grpc::CallbackServerContext*) override {
    return new RefusedSession(Elsewhere(address_));
  }

 private:
  const std::string address_;
};

}  // namespace

struct RedirectService::Impl final {
  explicit Impl(const std::string& address)
      : admin(address), sessions(address) {}

  AdminRedirect admin;
  SessionRedirect sessions;
};

RedirectService::RedirectService(const std::string& coordinator_address)
    : impl_(std::make_unique<Impl>(coordinator_address)) {}

RedirectService::~RedirectService() = default;

std::vector<grpc::Service*> RedirectService::services() {
  return {&impl_->admin, &impl_->sessions};
}

}  // namespace nereus
