#include "common/rpc/admin_client.h"

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/messages/status_messages.h"
#include "common/rpc/control_channel.h"
#include "common/rpc/rpc_status.h"
#include "proto/admin.grpc.pb.h"

namespace nereus {
namespace {

// Explains the error of a call, and puts the address before it, because a
// script may ask many servers.
absl::Status WithAddress(const absl::Status& status,
                         const std::string& address) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(address, ": ", ExplainCall(status)));
}

}  // namespace

absl::StatusOr<JobStatus> FetchJobStatus(const std::string& address,
                                         absl::Duration timeout) {
  const auto stub = v1::Admin::NewStub(MakeControlChannel(address));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  v1::GetStatusResponse response;
  const absl::Status status = FromGrpcStatus(
      stub->GetStatus(&context, v1::GetStatusRequest(), &response));
  if (!status.ok()) return WithAddress(status, address);
  return FromProto(response);
}

absl::Status DrainMember(const std::string& address, const std::string& member,
                         absl::Duration timeout) {
  const auto stub = v1::Admin::NewStub(MakeControlChannel(address));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  v1::DrainRequest request;
  request.set_member(member);
  v1::DrainResponse response;
  return WithAddress(FromGrpcStatus(stub->Drain(&context, request, &response)),
                     address);
}

absl::Status RequestCheckpoint(const std::string& address,
                               absl::Duration timeout) {
  const auto stub = v1::Admin::NewStub(MakeControlChannel(address));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  v1::RequestCheckpointResponse response;
  const absl::Status status = FromGrpcStatus(stub->RequestCheckpoint(
      &context, v1::RequestCheckpointRequest(), &response));
  return WithAddress(status, address);
}

}  // namespace nereus
