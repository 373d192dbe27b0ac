#include "common/rpc/membership_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/control_channel.h"
#include "common/rpc/messages.h"
#include "common/rpc/rpc_status.h"
#include "proto/coordinator.grpc.pb.h"

namespace nereus {
namespace {

constexpr absl::Duration kBackoffMin = absl::Milliseconds(50);
constexpr absl::Duration kBackoffMax = absl::Seconds(2);
constexpr absl::Duration kCallTimeout = absl::Seconds(3);
constexpr absl::Duration kComplainInterval = absl::Seconds(3);
// One who has left only waits to hear that the others have, too.
constexpr absl::Duration kLeavingInterval = absl::Milliseconds(50);

absl::StatusOr<Welcome> ReadWelcome(const v1::Welcome& message, Role role) {
  NEREUS_ASSIGN_OR_RETURN(Welcome welcome, FromProto(message));
  const int count =
      role == Role::kWorker ? welcome.job->workers : welcome.job->shards();
  if (welcome.rank < count) return welcome;
  return absl::InvalidArgumentError(
      absl::StrCat("the welcome gives rank ", welcome.rank, " of ", count));
}

}  // namespace

struct MembershipClient::Impl {
  explicit Impl(const std::string& address)
      : address(address),
        stub(v1::Coordinator::NewStub(MakeControlChannel(address))) {}

  absl::StatusOr<Welcome> TryJoin(const JoinRequest& request, bool* answered);
  void RunHeartbeats();
  absl::StatusOr<JobVerdict> SendHeartbeat();

  // Constant after construction.
  const std::string address;
  const std::unique_ptr<v1::Coordinator::Stub> stub;

  // Constant once the heartbeats have started.
  uint64_t job = 0;
  uint64_t epoch = 0;
  PeerId self;
  absl::Duration interval;
  absl::Duration patience;
  Report report;
  Verdict verdict;
  std::thread heartbeats;

  Mutex mu;
  bool cancelled ABSL_GUARDED_BY(mu) = false;
  bool leaving ABSL_GUARDED_BY(mu) = false;
  grpc::ClientContext* join_call ABSL_GUARDED_BY(mu) = nullptr;
  std::vector<Heartbeat::LostPeer> lost_peers ABSL_GUARDED_BY(mu);
};

MembershipClient::MembershipClient(const std::string& coordinator_address)
    : impl_(std::make_unique<Impl>(coordinator_address)) {}

MembershipClient::~MembershipClient() { StopHeartbeats(); }

void MembershipClient::StopHeartbeats() {
  Cancel();
  if (impl_->heartbeats.joinable()) impl_->heartbeats.join();
}

void MembershipClient::Cancel() {
  MutexLock lock(&impl_->mu);
  impl_->cancelled = true;
  if (impl_->join_call != nullptr) impl_->join_call->TryCancel();
}

absl::StatusOr<Welcome> MembershipClient::Impl::TryJoin(
    const JoinRequest& request, bool* answered) {
  grpc::ClientContext context;
  {
    MutexLock lock(&mu);
    if (cancelled) return absl::CancelledError("joining was cancelled");
    join_call = &context;
  }
  auto reader = stub->Join(&context, ToProto(request));
  v1::JoinEvent event;
  absl::StatusOr<Welcome> welcome = absl::UnavailableError("no welcome");
  while (reader->Read(&event)) {
    *answered = true;
    if (event.has_welcome()) {
      welcome = ReadWelcome(event.welcome(), request.role);
    } else {
      NEREUS_LOG(Info) << event.waiting();
    }
  }
  const grpc::Status status = reader->Finish();
  MutexLock lock(&mu);
  join_call = nullptr;
  if (!status.ok()) return FromGrpcStatus(status);
  return welcome;
}

absl::StatusOr<Welcome> MembershipClient::Join(const JoinRequest& request,
                                               absl::Duration connect_timeout) {
  const absl::Time start = SteadyNow();
  absl::Time complain = start + kComplainInterval;
  absl::Duration backoff = kBackoffMin;
  for (;;) {
    bool answered = false;
    absl::StatusOr<Welcome> welcome = impl_->TryJoin(request, &answered);
    if (welcome.ok()) return welcome;
    const absl::Status status = welcome.status();
    if (!absl::IsUnavailable(status)) {
      return absl::Status(status.code(),
                          absl::StrCat("the coordinator at ", impl_->address,
                                       " says: ", status.message()));
    }
    if (answered) {
      return absl::UnavailableError(
          absl::StrCat("the coordinator at ", impl_->address,
                       " went away while this member waited for others: ",
                       status.message()));
    }
    if (SteadyNow() - start > connect_timeout) {
      return absl::UnavailableError(absl::StrCat(
          "no coordinator answers at ", impl_->address, " for ",
          absl::FormatDuration(connect_timeout), ": ", status.message()));
    }
    if (SteadyNow() > complain) {
      NEREUS_LOG(Warning) << "no coordinator answers at " << impl_->address
                          << " yet, trying on: " << status.message();
      complain = SteadyNow() + kComplainInterval;
    }
    absl::SleepFor(backoff);
    backoff = std::min(backoff * 2, kBackoffMax);
  }
}

void MembershipClient::StartHeartbeats(const Welcome& welcome, PeerId self,
                                       absl::Duration interval,
                                       absl::Duration patience, Report report,
                                       Verdict verdict) {
  impl_->job = welcome.job->id;
  impl_->epoch = welcome.job->epoch;
  impl_->self = self;
  impl_->interval = interval;
  impl_->patience = patience;
  impl_->report = std::move(report);
  impl_->verdict = std::move(verdict);
  impl_->heartbeats = std::thread([this] { impl_->RunHeartbeats(); });
}

absl::StatusOr<JobVerdict> MembershipClient::Impl::SendHeartbeat() {
  Heartbeat heartbeat;
  heartbeat.job = job;
  heartbeat.epoch = epoch;
  heartbeat.member = self;
  report(heartbeat);
  {
    MutexLock lock(&mu);
    heartbeat.lost_peers = lost_peers;
  }
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
  v1::HeartbeatResponse response;
  const grpc::Status status =
      stub->SendHeartbeat(&context, ToProto(heartbeat), &response);
  if (!status.ok()) return FromGrpcStatus(status);
  MutexLock lock(&mu);
  lost_peers.erase(lost_peers.begin(),
                   lost_peers.begin() + heartbeat.lost_peers.size());
  return FromProto(response);
}

void MembershipClient::Impl::RunHeartbeats() {
  absl::Time last_answer = SteadyNow();
  for (;;) {
    absl::StatusOr<JobVerdict> answer = SendHeartbeat();
    const absl::Time now = SteadyNow();
    const bool silent = absl::IsUnavailable(answer.status()) ||
                        absl::IsDeadlineExceeded(answer.status());
    if (!silent) {
      last_answer = now;
      verdict(answer);
    } else if (now - last_answer > patience) {
      last_answer = now;
      verdict(absl::UnavailableError(absl::StrCat(
          "the coordinator at ", address, " has not answered for ",
          absl::FormatDuration(patience), ": ", answer.status().message())));
    }
    MutexLock lock(&mu);
    const bool was_leaving = leaving;
    const auto wake = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
      return cancelled || leaving != was_leaving ||
             (!silent && !lost_peers.empty());
    };
    mu.AwaitWithTimeout(wake, leaving ? kLeavingInterval : interval);
    if (cancelled) return;
  }
}

void MembershipClient::ReportLostPeer(PeerId peer, const std::string& reason) {
  MutexLock lock(&impl_->mu);
  impl_->lost_peers.push_back({peer, reason});
}

absl::Status MembershipClient::Leave() {
  v1::LeaveRequest request;
  request.set_job(impl_->job);
  request.set_epoch(impl_->epoch);
  *request.mutable_member() = ToProto(impl_->self);
  const absl::Time deadline = absl::Now() + impl_->patience;
  absl::Duration backoff = kBackoffMin;
  for (;;) {
    // As often as it takes: leaving twice is leaving once.
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    context.set_wait_for_ready(true);
    v1::LeaveResponse response;
    const absl::Status status =
        FromGrpcStatus(impl_->stub->Leave(&context, request, &response));
    MutexLock lock(&impl_->mu);
    impl_->leaving = status.ok();
    if (!absl::IsUnavailable(status) || impl_->cancelled) return status;
    impl_->mu.AwaitWithTimeout([]() { return false; }, backoff);
    backoff = std::min(backoff * 2, kBackoffMax);
  }
}

}  // namespace nereus
