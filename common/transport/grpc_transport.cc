#include "common/transport/grpc_transport.h"

#include <grpcpp/server.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/tensor/buffer.h"
#include "common/transport/grpc_endpoint.h"
#include "common/transport/grpc_hub.h"
#include "common/transport/handshake.h"

namespace nereus {

GrpcTransport::GrpcTransport(std::shared_ptr<GrpcHub> hub,
                             std::unique_ptr<GrpcEndpoint> endpoint)
    : hub_(std::move(hub)),
      endpoint_(std::move(endpoint)),
      scratch_(Buffer::Allocate(kFramePayloadBytesMax)) {}

GrpcTransport::~GrpcTransport() { Shutdown(absl::ZeroDuration()); }

absl::StatusOr<std::unique_ptr<Transport>> GrpcTransport::Start(
    const GrpcTransportOptions& options) {
  NEREUS_RETURN_IF_ERROR(options.Validate());
  auto hub = std::make_shared<GrpcHub>(options);
  NEREUS_ASSIGN_OR_RETURN(
      GrpcEndpoint endpoint,
      ListenForFrames(options.host, options.port, options.handshake_timeout,
                      [hub](grpc::GenericCallbackServerContext* context) {
                        return hub->Accept(context);
                      }));
  hub->Start();
  return std::unique_ptr<Transport>(new GrpcTransport(
      std::move(hub), std::make_unique<GrpcEndpoint>(std::move(endpoint))));
}

int GrpcTransport::port() const { return endpoint_->port; }

void GrpcTransport::SetIdentity(const Hello& self, const JobShape& shape) {
  hub_->SetIdentity(self, shape);
}

void GrpcTransport::Connect(PeerId peer, const std::string& address,
                            absl::Time deadline) {
  hub_->Connect(peer, address, deadline);
}

void GrpcTransport::Send(PeerId to, const Frame& frame) {
  hub_->Send(to, frame);
}

void GrpcTransport::Wake() { hub_->Wake(); }

std::vector<TrafficCount> GrpcTransport::traffic() const {
  return hub_->traffic();
}

void GrpcTransport::Poll(absl::Duration timeout, FrameHandler& handler) {
  std::deque<GrpcEvent> events = hub_->TakeEvents(timeout);
  for (GrpcEvent& event : events) Deliver(event, handler);
}

void GrpcTransport::Deliver(GrpcEvent& event, FrameHandler& handler) {
  switch (event.kind) {
    case GrpcEvent::Kind::kConnected:
      NEREUS_LOG(Debug) << "connected to " << PeerName(event.peer) << " ("
                        << event.connection->address() << ")";
      handler.OnConnected(event.peer);
      return;

    case GrpcEvent::Kind::kMessage: {
      const absl::Status received = Receive(event, handler);
      event.message.reset();
      event.connection->Consumed();
      if (received.ok()) return;
      NEREUS_LOG(Warning) << "ending the connection to " << PeerName(event.peer)
                          << " (" << event.connection->address()
                          << "): " << received.message();
      hub_->Refuse(event.connection, received);
      return;
    }

    case GrpcEvent::Kind::kDisconnected: {
      hub_->Disconnected(event);
      if (event.connection == nullptr) {
        NEREUS_LOG(Warning) << "cannot connect to " << event.failure.message();
        handler.OnDisconnected(event.peer, event.failure);
        return;
      }
      const absl::Status reason = event.connection->reason();
      // What this side refused was logged at once.
      if (!reason.ok() && !event.connection->refused_here()) {
        NEREUS_LOG(Warning) << "the connection to " << PeerName(event.peer)
                            << " (" << event.connection->address()
                            << ") has ended: " << reason.message();
      }
      handler.OnDisconnected(event.peer, reason);
      return;
    }
  }
}

absl::Status GrpcTransport::Receive(const GrpcEvent& event,
                                    FrameHandler& handler) {
  // It came behind a frame that ended the connection.
  if (event.connection->refused_here()) return absl::OkStatus();
  NEREUS_ASSIGN_OR_RETURN(const IncomingFrame incoming,
                          IncomingFrame::Read(*event.message));
  if (incoming.header().kind == FrameKind::kRefusal) {
    NEREUS_ASSIGN_OR_RETURN(const Frame refusal,
                            ReadSmallFrame(*event.message, kRefusalBytesMax));
    hub_->RefusedByPeer(event.connection, ReadRefusal(refusal));
    return absl::OkStatus();
  }
  if (incoming.header().kind == FrameKind::kHello) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(incoming.header()),
                     ": a second hello on one connection"));
  }
  return Land(event, incoming, handler);
}

absl::Status GrpcTransport::Land(const GrpcEvent& event,
                                 const IncomingFrame& incoming,
                                 FrameHandler& handler) {
  const FrameHeader& header = incoming.header();
  NEREUS_ASSIGN_OR_RETURN(Landing landing,
                          handler.OnHeader(event.peer, header));
  if (landing.kind != Landing::Kind::kDiscard) {
    Frame frame;
    frame.header = header;
    frame.payload = landing.kind == Landing::Kind::kPlace
                        ? std::move(landing.place)
                        : Buffer::View(scratch_.data(), header.payload_bytes);
    NEREUS_CHECK(frame.payload.bytes() == header.payload_bytes)
        << DescribeFrame(header) << ": was given a place of "
        << frame.payload.bytes() << " bytes";
    incoming.CopyPayload(frame.payload.data());
    NEREUS_RETURN_IF_ERROR(CheckPayload(header, frame.payload));
    event.connection->CountReceived(kFrameHeaderBytes + header.payload_bytes);
    handler.OnFrame(event.peer, frame);
    return absl::OkStatus();
  }
  event.connection->CountReceived(kFrameHeaderBytes + header.payload_bytes);
  return absl::OkStatus();
}

void GrpcTransport::Shutdown(absl::Duration timeout) {
  if (std::exchange(shut_down_, true)) return;
  hub_->Shutdown(absl::Now() + timeout);
  // Only streams that were turned away may be left.
  endpoint_->server->Shutdown(absl::ToChronoTime(absl::Now()));
  endpoint_->server->Wait();
}

absl::Status GrpcTransportOptions::Validate() const {
  const auto positive = [](const char* field, auto value,
                           bool good) -> absl::Status {
    if (good) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "gRPC transport: ", field, " is ", value, ", it must be positive"));
  };
  if (host.empty()) {
    return absl::InvalidArgumentError("gRPC transport: host is empty");
  }
  if (port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gRPC transport: port is ", port, ", it must be from 0 to 65535"));
  }
  NEREUS_RETURN_IF_ERROR(positive("handshake_timeout",
                                  absl::FormatDuration(handshake_timeout),
                                  handshake_timeout > absl::ZeroDuration()));
  NEREUS_RETURN_IF_ERROR(positive("closing_timeout",
                                  absl::FormatDuration(closing_timeout),
                                  closing_timeout > absl::ZeroDuration()));
  NEREUS_RETURN_IF_ERROR(
      positive("handshakes_max", handshakes_max, handshakes_max > 0));
  return positive("undelivered_max", undelivered_max, undelivered_max > 0);
}

}  // namespace nereus
