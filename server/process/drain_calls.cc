#include "server/process/drain_calls.h"

#include <utility>

#include "common/base/status.h"
#include "common/rpc/rpc_status.h"

namespace nereus {

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
