#include "server/redirect_service.h"

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/rpc_status.h"
#include "proto/admin.grpc.pb.h"

namespace nereus {

struct RedirectService::Impl final : v1::Admin::CallbackService {
  explicit Impl(const std::string& address) : coordinator_address(address) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest*,
                                      v1::GetStatusResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(absl::FailedPreconditionError(absl::StrCat(
        "this shard does not coordinate the job: ask ", coordinator_address))));
    return reactor;
  }

  const std::string coordinator_address;
};

RedirectService::RedirectService(const std::string& coordinator_address)
    : impl_(std::make_unique<Impl>(coordinator_address)) {}

RedirectService::~RedirectService() = default;

std::vector<grpc::Service*> RedirectService::services() {
  return {impl_.get()};
}

}  // namespace nereus
