#include "server/process/session_calls.h"

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/control_channel.h"
#include "common/rpc/rpc_status.h"

namespace nereus {

// The call of one session. One read and one write are under way at a time. When
// gRPC has finished with the call, it calls OnDone, and the call deletes
// itself.
class SessionCall final : public SessionCalls::Reactor {
 public:
  // `heard` is called for each message, `ended` when the call is over.
  SessionCall(std::function<void(const v1::MemberMessage&)> heard,
              std::function<void()> ended)
      : heard_(std::move(heard)), ended_(std::move(ended)) {}

  // Accepts the session, and starts to read.
  void Start() {
    StartSendInitialMetadata();
    StartRead(&incoming_);
  }

  // Queues a message, unless the call is ending.
  void Write(v1::CoordinatorMessage message) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (finishing_) return;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  // Finishes the call with `status` when all queued messages have been written.
  void End(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (finishing_) return;
    finishing_ = true;
    status_ = status;
    if (queue_.empty()) DoFinish();
  }

 private:
  // Tells gRPC to finish the call.
  void DoFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    finished_ = true;
    Finish(status_);
  }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (!ok) return End(grpc::Status::OK);  // No more messages.
    // Calls `heard_` without mu_. There the owner of SessionCalls locks its own
    // mutex, which it also holds when it calls Write, and Write locks mu_. With
    // mu_ held here, two threads could wait for each other for ever.
    heard_(incoming_);
    MutexLock lock(&mu_);
    if (!finished_) StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    queue_.pop_front();
    if (!ok) queue_.clear();  // The call is broken.
    if (!queue_.empty()) {
      StartWrite(&queue_.front());
    } else if (finishing_) {
      DoFinish();
    }
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

  void OnDone() override {
    ended_();
    delete this;
  }

  const std::function<void(const v1::MemberMessage&)> heard_;
  const std::function<void()> ended_;
  v1::MemberMessage incoming_;  // The read under way writes it.
  Mutex mu_;
  // Messages yet to write; the first one is being written.
  std::deque<v1::CoordinatorMessage> queue_ ABSL_GUARDED_BY(mu_);
  // True if Write drops messages: the call is ending.
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;
  // True if gRPC was told to finish.
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);  // Status to finish with.
};

SessionCalls::SessionCalls(
    std::function<void(SessionId, const v1::MemberMessage&)> heard,
    std::function<void(SessionId)> ended)
    : heard_(std::move(heard)), ended_(std::move(ended)) {}

SessionCalls::Reactor* SessionCalls::Open(
    grpc::CallbackServerContext* context) {
  const SessionId session = next_++;
  auto* call = new SessionCall(
      [this, session](const v1::MemberMessage& message) {
        heard_(session, message);
      },
      [this, session] { ended_(session); });
  calls_[session] = call;
  if (!stopping_.empty()) {
    call->End(ToGrpcStatus(UnavailableError(stopping_)));
  } else {
    context->AddInitialMetadata(kSessionHeader, "open");
    call->Start();
  }
  return call;
}

void SessionCalls::Write(SessionId session, v1::CoordinatorMessage message) {
  const auto found = calls_.find(session);
  if (found != calls_.end()) found->second->Write(std::move(message));
}

void SessionCalls::End(SessionId session) {
  const auto found = calls_.find(session);
  if (found != calls_.end()) found->second->End(grpc::Status::OK);
}

void SessionCalls::WriteAll(const v1::CoordinatorMessage& message) {
  for (const auto& [session, call] : calls_) call->Write(message);
}

void SessionCalls::EndAll(absl::string_view why) {
  stopping_ = std::string(why);
  for (const auto& [session, call] : calls_) {
    call->End(ToGrpcStatus(UnavailableError(why)));
  }
}

}  // namespace nereus
