#include "common/rpc/session_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/log_repeats.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/messages/messages.h"
#include "common/rpc/control_channel.h"
#include "common/rpc/rpc_status.h"
#include "proto/coordinator.grpc.pb.h"

// Sessions with the coordinator. Run, on a thread of its own, opens one session
// after the other. Attend runs one session from its opening to its end: Run's
// thread reads, and a writer thread sends the queued messages and a heartbeat
// each second. After each session, Judge decides whether to try again after a
// pause, or to give up.
//
//   Run --> Attend --opened--> Read | Write --stream ends--> Judge --> Run
//                                                              '--> failed

namespace nereus {
namespace {

// Shortest and longest pause between two attempts to open a session.
constexpr absl::Duration kBackoffMin = absl::Milliseconds(50);
constexpr absl::Duration kBackoffMax = absl::Seconds(1);
// Time without an answer after which the log warns of it.
constexpr absl::Duration kComplainAfter = absl::Seconds(3);

using Stream =
    grpc::ClientReaderWriter<v1::MemberMessage, v1::CoordinatorMessage>;

}  // namespace

// State of the client, and the functions of its two threads.
struct SessionClient::Impl {
  Impl(SessionClientOptions options, Events events);

  // Opens sessions until Stop, or until Judge gives up.
  void Run() ABSL_LOCKS_EXCLUDED(mu);
  // Runs one session, from its opening to its end. Returns why it ended.
  grpc::Status Attend() ABSL_LOCKS_EXCLUDED(mu);
  // Passes the coordinator's messages to `events.message` until the stream
  // ends.
  void Read(Stream* stream) ABSL_LOCKS_EXCLUDED(mu);
  // Sends messages and heartbeats until the session closes.
  void Write(Stream* stream) ABSL_LOCKS_EXCLUDED(mu);
  // Takes the status with which a session ended. Returns OK if another session
  // is to be opened, else the reason to give up.
  absl::Status Judge(const absl::Status& status);
  // Opens no further session. If `cancel`, also ends the open session.
  void Stop(bool cancel) ABSL_LOCKS_EXCLUDED(mu);

  const SessionClientOptions options;                 // Constant.
  const Events events;                                // Constant.
  const std::unique_ptr<v1::Coordinator::Stub> stub;  // Constant.

  // Used by Run's thread only.
  //
  // True once a coordinator has accepted a session.
  bool answered = false;
  // End of the last accepted session; the start of this object before that.
  absl::Time last_answer = SteadyNow();
  LogPace complaints;   // Pace of the warnings that no coordinator answers.
  absl::Status unread;  // Not OK once a message could not be understood.

  Mutex mu;
  // True once no further session is to open.
  bool stopping ABSL_GUARDED_BY(mu) = false;
  bool open ABSL_GUARDED_BY(mu) = false;  // True while Send queues messages.
  // True once the open session's first message is queued.
  bool begun ABSL_GUARDED_BY(mu) = false;
  // Call of the open session, for TryCancel; not owned.
  grpc::ClientContext* context ABSL_GUARDED_BY(mu) = nullptr;
  // Messages for the writer.
  std::deque<v1::MemberMessage> queue ABSL_GUARDED_BY(mu);

  std::thread thread;  // Runs Run.
};

SessionClient::Impl::Impl(SessionClientOptions options, Events events)
    : options(std::move(options)),
      events(std::move(events)),
      stub(v1::Coordinator::NewStub(
          MakeControlChannel(this->options.coordinator_address))) {}

SessionClient::SessionClient(SessionClientOptions options, Events events)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(events))) {}

SessionClient::~SessionClient() {
  impl_->Stop(/*cancel=*/true);
  if (impl_->thread.joinable()) impl_->thread.join();
}

void SessionClient::Start() {
  impl_->thread = std::thread([this] { impl_->Run(); });
}

void SessionClient::Stop() { impl_->Stop(/*cancel=*/false); }

void SessionClient::Impl::Stop(bool cancel) {
  MutexLock lock(&mu);
  stopping = true;
  if (cancel && context != nullptr) context->TryCancel();
}

void SessionClient::Send(const MemberMessage& message) {
  MutexLock lock(&impl_->mu);
  const bool begins = std::holds_alternative<JoinRequest>(message) ||
                      std::holds_alternative<Resume>(message);
  const bool gathers = std::holds_alternative<LobbyGather>(message);
  if (!impl_->open || (!gathers && begins == impl_->begun)) return;
  impl_->begun = true;
  impl_->queue.push_back(ToProto(message));
}

void SessionClient::Impl::Run() {
  absl::Duration backoff = kBackoffMin;
  for (;;) {
    const absl::Time begun = SteadyNow();
    const absl::Status status = FromGrpcStatus(Attend());
    // The coordinator accepted this session, so the next attempt may come soon.
    if (last_answer > begun) backoff = kBackoffMin;
    {
      MutexLock lock(&mu);
      if (stopping) return;
    }
    const absl::Status verdict = unread.ok() ? Judge(status) : unread;
    if (!verdict.ok()) {
      events.failed(verdict);
      return;
    }
    MutexLock lock(&mu);
    mu.AwaitWithTimeout(
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return stopping; },
        backoff);
    if (stopping) return;
    backoff = std::min(backoff * 2, kBackoffMax);
  }
}

absl::Status SessionClient::Impl::Judge(const absl::Status& status) {
  const std::string& address = options.coordinator_address;
  if (absl::IsUnimplemented(status)) {
    return absl::Status(status.code(),
                        absl::StrCat("no coordinator is at ", address, ": ",
                                     ExplainCall(status)));
  }
  // kUnavailable and kCancelled mean a lost connection, and so do two codes
  // with which gRPC, or a proxy, ends a session that a coordinator has
  // accepted. Any other error is the answer of a process that refuses this
  // member, so trying again is useless.
  const bool is_lost =
      absl::IsUnavailable(status) || absl::IsCancelled(status) ||
      (answered && (absl::IsInternal(status) || absl::IsUnknown(status)));
  if (!status.ok() && !is_lost) {
    return Prefixed(status, "the coordinator at ", address, " says: ");
  }
  const absl::Time now = SteadyNow();
  const std::string why = ExplainCall(status);
  const absl::Duration limit =
      answered ? options.patience : options.connect_timeout;
  if (now - last_answer > limit) {
    return UnavailableError("no coordinator answers at ", address, " for ",
                            absl::FormatDuration(limit), ": ", why);
  }
  const absl::Duration lasts = now - last_answer;
  if (lasts > kComplainAfter && complaints.IsDue(lasts)) {
    NEREUS_LOG(Warning, {LogEvent::kWaiting})
        << "no coordinator answers at " << address << " yet, trying on"
        << LastsText(lasts) << ": " << why;
  }
  return absl::OkStatus();
}

grpc::Status SessionClient::Impl::Attend() {
  grpc::ClientContext call;
  {
    MutexLock lock(&mu);
    if (stopping) return grpc::Status::CANCELLED;
    context = &call;
    // Drops messages for the last session: they must not come before the Resume
    // of this one.
    queue.clear();
    open = true;
    begun = false;
  }
  const std::unique_ptr<Stream> stream = stub->Attend(&call);
  events.opened();
  std::thread writer([&] { Write(stream.get()); });
  stream->WaitForInitialMetadata();
  // An open connection proves little, because any gRPC server accepts one. Only
  // a coordinator sends this header.
  const bool accepted =
      call.GetServerInitialMetadata().count(kSessionHeader) > 0;
  Read(stream.get());
  if (accepted) {
    answered = true;
    last_answer = SteadyNow();
    complaints = LogPace();
  }
  {
    MutexLock lock(&mu);
    open = false;
  }
  writer.join();
  const grpc::Status status = stream->Finish();
  MutexLock lock(&mu);
  context = nullptr;
  return status;
}

void SessionClient::Impl::Read(Stream* stream) {
  v1::CoordinatorMessage proto;
  while (stream->Read(&proto)) {
    const absl::StatusOr<CoordinatorMessage> message = FromProto(proto);
    if (message.ok()) {
      events.message(*message);
      continue;
    }
    // In another session the coordinator would send the message again.
    unread = Prefixed(message.status(), "the coordinator at ",
                      options.coordinator_address,
                      " sent a message that this version does not know: ");
    MutexLock lock(&mu);
    context->TryCancel();
    return;
  }
}

void SessionClient::Impl::Write(Stream* stream) {
  absl::Time beat_at = SteadyNow() + kHeartbeatInterval;
  for (;;) {
    std::optional<v1::MemberMessage> message;
    bool silent = false;
    {
      MutexLock lock(&mu);
      const auto wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
        return !open || !queue.empty();
      };
      mu.AwaitWithTimeout(wake, beat_at - SteadyNow());
      if (!open) return;
      silent = !begun;
      if (!queue.empty()) {
        message = std::move(queue.front());
        queue.pop_front();
      }
    }
    if (!message.has_value()) {
      beat_at = SteadyNow() + kHeartbeatInterval;
      if (silent) continue;
      const std::optional<Heartbeat> heartbeat = events.heartbeat();
      if (!heartbeat.has_value()) continue;
      message = ToProto(MemberMessage(*heartbeat));
    }
    // Ignores a failed write: Read then fails too, which ends the session.
    stream->Write(*message);
  }
}

}  // namespace nereus
