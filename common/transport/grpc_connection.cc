#include "common/transport/grpc_connection.h"

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

constexpr size_t kStatusTextBytesMax = 1024;

bool CountsAsTraffic(FrameKind kind) {
  return kind != FrameKind::kHello && kind != FrameKind::kRefusal;
}

// The connecting end. Holds a hold from the start to Release, because frames
// are sent from threads that are not gRPC's.
class ConnectingEnd final
    : public GrpcConnection,
      public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ConnectingEnd(std::shared_ptr<grpc::Channel> channel, std::string address,
                int undelivered_max, std::shared_ptr<Listener> listener,
                std::shared_ptr<UseCount> count)
      : GrpcConnection(std::move(address), /*connecting=*/true, undelivered_max,
                       std::move(listener), std::move(count)),
        channel_(std::move(channel)),
        stub_(channel_) {}

  void Start() override {
    self_ = shared_from_this();
    stub_.PrepareBidiStreamingCall(&context_, kFramesMethod, {}, this);
    AddHold();
    StartCall();
    Open();
  }

  void OnReadDone(bool ok) override { OnRead(ok); }
  void OnWriteDone(bool ok) override { OnWritten(ok); }
  void OnDone(const grpc::Status& status) override {
    OnOver(status.ok()
               ? absl::OkStatus()
               : absl::UnavailableError(absl::StrCat(
                     "the connection was lost: ",
                     status.error_message().substr(0, kStatusTextBytesMax))),
           status.error_code() == grpc::StatusCode::UNIMPLEMENTED);
  }

 private:
  void StartReading(grpc::ByteBuffer* message) override { StartRead(message); }
  void StartWriting(const grpc::ByteBuffer* message) override {
    StartWrite(message);
  }
  void Finish(const absl::Status&, bool open) override {
    if (open) StartWritesDone();
  }
  void Release() override { RemoveHold(); }
  void Cancel() override { context_.TryCancel(); }

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
};

// The end that was connected to.
class AcceptingEnd final : public GrpcConnection,
                           public grpc::ServerGenericBidiReactor {
 public:
  AcceptingEnd(grpc::GenericCallbackServerContext* context, int undelivered_max,
               std::shared_ptr<Listener> listener,
               std::shared_ptr<UseCount> count)
      : GrpcConnection(context->peer(), /*connecting=*/false, undelivered_max,
                       std::move(listener), std::move(count)),
        context_(context) {}

  void Start() override {
    self_ = shared_from_this();
    Open();
  }

  void OnReadDone(bool ok) override { OnRead(ok); }
  void OnWriteDone(bool ok) override { OnWritten(ok); }
  void OnCancel() override { lost_ = true; }
  void OnDone() override {
    {
      std::lock_guard<std::mutex> lock(context_mu_);
      context_ = nullptr;
    }
    OnOver(lost_ ? absl::UnavailableError("the connection was lost")
                 : absl::OkStatus(),
           /*unimplemented=*/false);
  }

 private:
  void StartReading(grpc::ByteBuffer* message) override { StartRead(message); }
  void StartWriting(const grpc::ByteBuffer* message) override {
    StartWrite(message);
  }
  void Finish(const absl::Status& reason, bool) override {
    if (reason.ok()) {
      grpc::ServerGenericBidiReactor::Finish(grpc::Status::OK);
      return;
    }
    const absl::string_view text =
        reason.message().substr(0, kStatusTextBytesMax);
    grpc::ServerGenericBidiReactor::Finish(
        grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, std::string(text)));
  }
  void Release() override {}
  void Cancel() override {
    std::lock_guard<std::mutex> lock(context_mu_);
    if (context_ != nullptr) context_->TryCancel();
  }

  // gRPC destroys the context after OnDone: this lock keeps Cancel out of that.
  // It is held during a call into gRPC, and so is taken nowhere else.
  std::mutex context_mu_;
  grpc::GenericCallbackServerContext* context_;  // Guarded by context_mu_.
  std::atomic<bool> lost_{false};
};

}  // namespace

std::shared_ptr<GrpcConnection> GrpcConnection::ToPeer(
    std::shared_ptr<grpc::Channel> channel, std::string address,
    int undelivered_max, std::shared_ptr<Listener> listener,
    std::shared_ptr<UseCount> count) {
  return std::make_shared<ConnectingEnd>(std::move(channel), std::move(address),
                                         undelivered_max, std::move(listener),
                                         std::move(count));
}

std::shared_ptr<GrpcConnection> GrpcConnection::FromPeer(
    grpc::GenericCallbackServerContext* context, int undelivered_max,
    std::shared_ptr<Listener> listener, std::shared_ptr<UseCount> count,
    grpc::ServerGenericBidiReactor** reactor) {
  auto end = std::make_shared<AcceptingEnd>(
      context, undelivered_max, std::move(listener), std::move(count));
  *reactor = end.get();
  return end;
}

GrpcConnection::GrpcConnection(std::string address, bool connecting,
                               int undelivered_max,
                               std::shared_ptr<Listener> listener,
                               std::shared_ptr<UseCount> count)
    : address_(std::move(address)),
      connecting_(connecting),
      undelivered_max_(undelivered_max),
      listener_(std::move(listener)),
      count_(std::move(count)) {
  count_->Increment();
}

GrpcConnection::~GrpcConnection() { count_->Decrement(); }

void GrpcConnection::Open() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    open_ = true;
  }
  Pump();
}

void GrpcConnection::Send(OutgoingPtr frame) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!ending_ && !finished_) Enqueue(std::move(frame));
  }
  Pump();
}

void GrpcConnection::Adopt(std::deque<OutgoingPtr> frames,
                           std::shared_ptr<TrafficCounters> traffic) {
  std::lock_guard<std::mutex> lock(mu_);
  traffic_ = std::move(traffic);
  if (ending_ || finished_) {
    frames.swap(unwanted_);
    return;
  }
  for (OutgoingPtr& frame : frames) Enqueue(std::move(frame));
}

void GrpcConnection::Enqueue(OutgoingPtr frame) {
  const uint32_t rank = frame->rank();
  queue_.Push(rank, std::move(frame));
}

void GrpcConnection::Consumed() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    --undelivered_;
  }
  Pump();
}

void GrpcConnection::End(OutgoingPtr last, absl::Status reason) {
  std::deque<OutgoingPtr> dropped;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (explained_) return;
    explained_ = true;
    reason_ = std::move(reason);
    refused_here_ = last != nullptr;
    ending_ = true;
    dropped = queue_.TakeAll();
    if (last != nullptr && !finished_) last_ = std::move(last);
  }
  Pump();
}

void GrpcConnection::EndWhenSent(OutgoingPtr last) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!ending_) last_ = std::move(last);
    ending_ = true;
  }
  Pump();
}

void GrpcConnection::Abort(absl::Status reason) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!explained_) reason_ = std::move(reason);
    explained_ = true;
    ending_ = true;
    cancel_wanted_ = true;
  }
  Pump();
}

bool GrpcConnection::refused_here() const {
  std::lock_guard<std::mutex> lock(mu_);
  return refused_here_;
}

absl::Status GrpcConnection::reason() const {
  std::lock_guard<std::mutex> lock(mu_);
  return explained_ ? reason_ : grpc_status_;
}

bool GrpcConnection::unimplemented() const {
  std::lock_guard<std::mutex> lock(mu_);
  return unimplemented_;
}

void GrpcConnection::CountReceived(int64_t bytes) {
  std::shared_ptr<TrafficCounters> traffic;
  {
    std::lock_guard<std::mutex> lock(mu_);
    traffic = traffic_;
  }
  if (traffic != nullptr) traffic->received += bytes;
}

void GrpcConnection::OnRead(bool ok) {
  bool deliver = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    deliver = ok && !ending_;
    if (deliver) ++undelivered_;
  }
  // gRPC's buffers cannot be moved, and copying one counts every slice.
  auto message = std::make_unique<grpc::ByteBuffer>();
  message->Swap(&incoming_);
  // Still marked as reading, so that no other message can overtake this one.
  if (deliver) listener_->OnMessage(shared_from_this(), std::move(message));
  {
    std::lock_guard<std::mutex> lock(mu_);
    reading_ = false;
    if (!ok) read_ended_ = true;
  }
  Pump();
}

void GrpcConnection::OnWritten(bool ok) {
  // gRPC holds its own references to what it has not sent yet.
  outgoing_.Clear();
  {
    std::lock_guard<std::mutex> lock(mu_);
    writing_ = false;
    if (!ok) write_failed_ = true;
  }
  Pump();
}

void GrpcConnection::OnOver(absl::Status status, bool unimplemented) {
  std::deque<OutgoingPtr> dropped;
  {
    std::lock_guard<std::mutex> lock(mu_);
    grpc_status_ = std::move(status);
    unimplemented_ = unimplemented;
    ending_ = true;
    dropped = queue_.TakeAll();
    if (last_ != nullptr) dropped.push_back(std::move(last_));
  }
  dropped.clear();
  const std::shared_ptr<GrpcConnection> self = std::move(self_);
  listener_->OnClosed(self);
}

void GrpcConnection::Pump() {
  std::unique_lock<std::mutex> lock(mu_);
  if (!open_) return;
  pump_again_ = true;
  if (pumping_) return;
  pumping_ = true;
  while (pump_again_) {
    pump_again_ = false;
    Work work = NextWork();
    if (work.step != Step::kNone) pump_again_ = true;
    lock.unlock();
    Take(std::move(work));
    lock.lock();
  }
  pumping_ = false;
}

GrpcConnection::Work GrpcConnection::NextWork() {
  Work work;
  work.dropped.swap(unwanted_);
  if (cancel_wanted_ && !cancelled_) {
    cancelled_ = true;
    work.step = Step::kCancel;
    return work;
  }
  if (cancelled_ || read_ended_ || write_failed_) {
    while (!queue_.empty()) work.dropped.push_back(queue_.Pop());
    if (last_ != nullptr) work.dropped.push_back(std::move(last_));
  }
  if (!writing_ && !finished_) {
    if (!queue_.empty() || last_ != nullptr) {
      writing_ = true;
      work.step = Step::kWrite;
      work.frames = NextFrames();
      const FrameKind kind = work.frames.front()->header().kind;
      if (CountsAsTraffic(kind)) work.traffic = traffic_;
      return work;
    }
    // gRPC's client drops what it has not read yet when the server finishes
    // first: the accepting side waits until the other one has.
    if (read_ended_ || cancelled_ || (connecting_ && ending_)) {
      finished_ = true;
      work.step = Step::kFinish;
      work.reason = reason_;
      work.open = !read_ended_ && !write_failed_;
      return work;
    }
  }
  const bool may_read =
      !reading_ && !read_ended_ && (connecting_ || !finished_);
  if (may_read && (ending_ || undelivered_ < undelivered_max_)) {
    reading_ = true;
    work.step = Step::kRead;
    return work;
  }
  if (connecting_ && finished_ && read_ended_ && !released_) {
    released_ = true;
    work.step = Step::kRelease;
  }
  return work;
}

std::vector<GrpcConnection::OutgoingPtr> GrpcConnection::NextFrames() {
  std::vector<OutgoingPtr> frames;
  if (queue_.empty()) {
    frames.push_back(std::move(last_));
    return frames;
  }
  int64_t bytes = 0;
  do {
    frames.push_back(queue_.Pop());
    bytes += frames.back()->bytes();
  } while (frames.back()->fused() && !queue_.empty() &&
           queue_.front()->fused() &&
           bytes + queue_.front()->bytes() <= kMessageBytesMax);
  return frames;
}

void GrpcConnection::Take(Work work) {
  switch (work.step) {
    case Step::kNone:
      return;
    case Step::kCancel:
      return Cancel();
    case Step::kRead:
      return StartReading(&incoming_);
    case Step::kWrite: {
      for (const OutgoingPtr& frame : work.frames) {
        if (work.traffic != nullptr) work.traffic->sent += frame->bytes();
      }
      grpc::ByteBuffer message =
          OutgoingFrame::ToMessage(std::move(work.frames));
      outgoing_.Swap(&message);
      return StartWriting(&outgoing_);
    }
    case Step::kFinish:
      return Finish(work.reason, work.open);
    case Step::kRelease:
      return Release();
  }
}

}  // namespace nereus
