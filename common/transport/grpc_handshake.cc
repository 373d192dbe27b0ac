// The handshakes of GrpcHub: who may connect to whom.

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/transport/grpc_endpoint.h"
#include "common/transport/grpc_hub.h"
#include "common/transport/handshake.h"

namespace nereus {
namespace {

// What the connecting side is told: what may be different soon, as such.
absl::Status ComeAgain(const absl::Status& status) {
  return absl::IsUnavailable(status)
             ? absl::UnavailableError(NotReadyReason(status.message()))
             : status;
}

}  // namespace

grpc::ServerGenericBidiReactor* GrpcHub::Accept(
    grpc::GenericCallbackServerContext* context) {
  ConnectionPtr connection;
  grpc::ServerGenericBidiReactor* reactor = nullptr;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (stopping_) {
      return RefuseStream(grpc::Status(grpc::StatusCode::UNAVAILABLE,
                                       NotReadyReason("it is shutting down")));
    }
    if (strangers_ >= options_.handshakes_max) {
      return RefuseStream(grpc::Status(
          grpc::StatusCode::RESOURCE_EXHAUSTED,
          NotReadyReason(absl::StrCat(strangers_, " handshakes are under way, ",
                                      options_.handshakes_max,
                                      " are allowed"))));
    }
    connection =
        GrpcConnection::FromPeer(context, options_.undelivered_max,
                                 shared_from_this(), connections_, &reactor);
    ++strangers_;
    Live& live = live_[connection.get()];
    live.connection = connection;
    live.stranger = true;
    live.abort_at = absl::Now() + options_.handshake_timeout;
    live.abort_reason = absl::StrCat(
        "no hello within ", absl::FormatDuration(options_.handshake_timeout));
    timers_changed_.notify_all();
  }
  connection->Start();
  return reactor;
}

void GrpcHub::OnMessage(const ConnectionPtr& connection,
                        std::unique_ptr<grpc::ByteBuffer> message) {
  if (connection->peer().has_value()) {
    events_.Push({GrpcEvent::Kind::kMessage,
                  *connection->peer(),
                  connection,
                  std::move(message),
                  {}});
    return;
  }
  if (connection->connecting()) {
    OnAnswer(connection, *message);
  } else {
    OnIntroduction(connection, *message);
  }
  connection->Consumed();
}

void GrpcHub::OnIntroduction(const ConnectionPtr& connection,
                             const grpc::ByteBuffer& message) {
  const absl::Status admitted = [&]() -> absl::Status {
    NEREUS_ASSIGN_OR_RETURN(const Frame frame,
                            ReadSmallFrame(message, kHelloBytesMax));
    NEREUS_ASSIGN_OR_RETURN(const Hello theirs, ReadHello(frame));
    return Admit(connection, theirs);
  }();
  if (admitted.ok()) return;
  if (admitted.code() == absl::StatusCode::kUnavailable) {
    NEREUS_LOG(Debug) << "sent away " << connection->address() << ": "
                      << admitted.message();
  } else {
    NEREUS_LOG(Warning) << "refused a connection from " << connection->address()
                        << ": " << admitted.message();
  }
  Refuse(connection, admitted);
}

absl::Status GrpcHub::Admit(const ConnectionPtr& connection,
                            const Hello& theirs) {
  ConnectionPtr abandoned;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (stopping_) {
      return absl::UnavailableError(NotReadyReason("it is shutting down"));
    }
    if (!identity_.has_value()) {
      return absl::UnavailableError(
          NotReadyReason("it has no place in the job yet"));
    }
    NEREUS_RETURN_IF_ERROR(ComeAgain(CheckHello(*identity_, theirs, roster_)));
    Link& link = links_[theirs.self];
    if (link.state == Link::State::kUp) {
      return absl::AlreadyExistsError(
          absl::StrCat("handshake: ", PeerName(theirs.self),
                       " is connected to ", PeerName(identity_->self),
                       " already, from ", link.connection->address(),
                       "; this one comes from ", connection->address()));
    }
    if (link.state == Link::State::kEnded) {
      return absl::UnavailableError(
          NotReadyReason("it still deals with the end of the last connection"));
    }
    if (link.state == Link::State::kConnecting) abandoned = link.connection;

    Hello ours = *identity_;
    ours.intended = theirs.self;
    Frames first;
    first.push_back(Outgoing(HelloFrame(ours)));
    Establish(theirs.self, link, connection, std::move(first));
  }
  if (abandoned != nullptr) {
    abandoned->Abort(absl::CancelledError("the peer connected first"));
  }
  return absl::OkStatus();
}

void GrpcHub::OnAnswer(const ConnectionPtr& connection,
                       const grpc::ByteBuffer& message) {
  const absl::Status completed = [&]() -> absl::Status {
    NEREUS_ASSIGN_OR_RETURN(
        const Frame frame,
        ReadSmallFrame(message, std::max(kHelloBytesMax, kRefusalBytesMax)));
    if (frame.header.kind == FrameKind::kRefusal) {
      RefusedByPeer(connection, ReadRefusal(frame));
      return absl::OkStatus();
    }
    NEREUS_ASSIGN_OR_RETURN(const Hello theirs, ReadHello(frame));
    return Complete(connection, theirs);
  }();
  if (!completed.ok()) Refuse(connection, completed);
}

absl::Status GrpcHub::Complete(const ConnectionPtr& connection,
                               const Hello& theirs) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto live = live_.find(connection.get());
  NEREUS_CHECK(live != live_.end()) << connection->address();
  const PeerId dialled = *live->second.dialled;
  if (theirs.self != dialled) {
    return absl::FailedPreconditionError(
        absl::StrCat("handshake: ", PeerName(dialled), " was dialled, ",
                     PeerName(theirs.self), " answers"));
  }
  NEREUS_RETURN_IF_ERROR(CheckHello(*identity_, theirs, roster_));
  Link& link = links_[dialled];
  if (link.state != Link::State::kConnecting || link.connection != connection) {
    return absl::CancelledError("this connection is not wanted any more");
  }
  Establish(dialled, link, connection, {});
  return absl::OkStatus();
}

}  // namespace nereus
