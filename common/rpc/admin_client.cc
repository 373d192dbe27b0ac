#include "common/rpc/admin_client.h"

#include <grpcpp/grpcpp.h>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/messages/job_messages.h"
#include "common/messages/status_messages.h"
#include "common/messages/trace_messages.h"
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

// Adds the spans of a reply to the trace. Errors: kInvalidArgument.
absl::Status AddSpans(const v1::TraceReply::MemberSpans& message,
                      JobTrace& trace) {
  const PeerId member = NEREUS_TRY(FromProto(message.member()));
  const auto found = absl::c_find_if(
      trace.members, [=](const auto& each) { return each.member == member; });
  if (found == trace.members.end()) {
    return InvalidArgumentError("spans of ", PeerName(member),
                                ", which is not traced");
  }
  TracePart part = NEREUS_TRY(Decoded<TracePart>(message.part()));
  found->spans.insert(found->spans.end(), part.spans.begin(), part.spans.end());
  if (!part.is_last) return absl::OkStatus();
  found->lost = part.lost;
  found->clock = std::move(part.clock);
  return absl::OkStatus();
}

// Handles a reply to Admin.Trace.
absl::Status OnReply(
    const v1::TraceReply& reply, JobTrace& trace,
    const std::function<void(const JobTrace&, int64_t)>& progress) {
  if (reply.has_begun()) {
    trace = NEREUS_TRY(FromProto(reply.begun()));
    progress(trace, kInitialRound);
  } else if (trace.job == nullptr) {
    return InvalidArgumentError("the first reply does not describe the trace");
  } else if (reply.has_spans()) {
    return AddSpans(reply.spans(), trace);
  } else {
    progress(trace, reply.done_round());
  }
  return absl::OkStatus();
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

absl::StatusOr<JobTrace> FetchTrace(
    const std::string& address, const TraceQuestion& question,
    absl::Duration timeout,
    const std::function<void(const JobTrace&, int64_t)>& progress) {
  const auto stub = v1::Admin::NewStub(MakeControlChannel(address));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  v1::TraceRequest request;
  request.set_first_step(question.first_step);
  request.set_steps(question.steps);
  request.set_spans_max(question.spans_max);
  const auto reader = stub->Trace(&context, request);
  JobTrace trace;
  absl::Status read;
  v1::TraceReply reply;
  while (read.ok() && reader->Read(&reply)) {
    read = OnReply(reply, trace, progress);
  }
  if (!read.ok()) context.TryCancel();
  const absl::Status ended = FromGrpcStatus(reader->Finish());
  if (!read.ok()) return WithAddress(read, address);
  if (!ended.ok()) return WithAddress(ended, address);
  // The times of a member that was cut off cannot be converted.
  for (MemberTrace& member : trace.members) {
    if (member.clock.empty()) member.spans.clear();
  }
  if (trace.job != nullptr) return trace;
  return WithAddress(UnavailableError("the trace is empty"), address);
}

}  // namespace nereus
