#include "common/transport/grpc_transport.h"

#include <grpcpp/server.h>

#include <deque>
#include <iterator>
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

void GrpcTransport::SetRoster(const Hello& self, Roster roster) {
  hub_->SetRoster(self, std::move(roster));
}

void GrpcTransport::Connect(PeerId peer, const std::string& address,
                            absl::Time deadline) {
  hub_->Connect(peer, address, deadline);
}

void GrpcTransport::Disconnect(PeerId peer) {
  waiting_.erase(peer);
  hub_->Disconnect(peer);
}

void GrpcTransport::Send(PeerId to, const Frame& frame) {
  hub_->Send(to, frame);
}

void GrpcTransport::Wake() { hub_->Wake(); }

std::vector<TrafficCount> GrpcTransport::traffic() const {
  return hub_->traffic();
}

void GrpcTransport::Poll(absl::Duration timeout, FrameHandler& handler) {
  if (RetryWaiting(handler)) timeout = absl::ZeroDuration();
  for (GrpcEvent& event : hub_->TakeEvents(timeout)) {
    const auto waiting = waiting_.find(event.peer);
    if (waiting != waiting_.end()) {
      waiting->second.push_back(std::move(event));
    } else if (!Deliver(event, handler)) {
      waiting_[event.peer].push_back(std::move(event));
    }
  }
}

bool GrpcTransport::RetryWaiting(FrameHandler& handler) {
  bool delivered = false;
  // The handler may call Disconnect, and change waiting_.
  std::map<PeerId, std::deque<GrpcEvent>> retried;
  retried.swap(waiting_);
  for (auto& [peer, events] : retried) {
    while (!events.empty() && Deliver(events.front(), handler)) {
      events.pop_front();
      delivered = true;
    }
    if (!events.empty()) waiting_[peer] = std::move(events);
  }
  return delivered;
}

bool GrpcTransport::Deliver(GrpcEvent& event, FrameHandler& handler) {
  // What came in before the owner ended the connection.
  if (event.connection != nullptr && event.connection->disowned()) return true;
  switch (event.kind) {
    case GrpcEvent::Kind::kConnected:
      NEREUS_LOG(Debug) << "connected to " << PeerName(event.peer) << " ("
                        << event.connection->address() << ")";
      handler.OnConnected(event.peer);
      return true;
    case GrpcEvent::Kind::kMessage:
      return DeliverMessage(event, handler);
    case GrpcEvent::Kind::kDisconnected:
      DeliverEnd(event, handler);
      return true;
  }
  return true;
}

bool GrpcTransport::DeliverMessage(GrpcEvent& event, FrameHandler& handler) {
  const absl::StatusOr<bool> received = Receive(event, handler);
  if (received.ok() && !*received) return false;
  event.message.reset();
  event.connection->Consumed();
  if (received.ok()) return true;
  NEREUS_LOG(Warning) << "ending the connection to " << PeerName(event.peer)
                      << " (" << event.connection->address()
                      << "): " << received.status().message();
  hub_->Refuse(event.connection, received.status());
  return true;
}

void GrpcTransport::DeliverEnd(const GrpcEvent& event, FrameHandler& handler) {
  if (!hub_->Disconnected(event)) return;
  if (event.connection == nullptr) {
    NEREUS_LOG(Warning) << "cannot connect to " << event.failure.message();
    handler.OnDisconnected(event.peer, event.failure);
    return;
  }
  const absl::Status reason = event.connection->reason();
  // What this side refused was logged at once.
  if (!reason.ok() && !event.connection->refused_here()) {
    NEREUS_LOG(Warning) << "the connection to " << PeerName(event.peer) << " ("
                        << event.connection->address()
                        << ") has ended: " << reason.message();
  }
  handler.OnDisconnected(event.peer, reason);
}

absl::StatusOr<bool> GrpcTransport::Receive(GrpcEvent& event,
                                            FrameHandler& handler) {
  // It came behind a frame that ended the connection.
  if (event.connection->refused_here()) return true;
  NEREUS_ASSIGN_OR_RETURN(const IncomingMessage message,
                          IncomingMessage::Read(*event.message));
  const FrameHeader& first = message.header(0);
  if (first.kind == FrameKind::kRefusal) {
    NEREUS_ASSIGN_OR_RETURN(const Frame refusal,
                            ReadSmallFrame(*event.message, kRefusalBytesMax));
    hub_->RefusedByPeer(event.connection, ReadRefusal(refusal));
    return true;
  }
  if (first.kind == FrameKind::kHello) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(first), ": a second hello on one connection"));
  }
  for (; event.frames_done < message.frames(); ++event.frames_done) {
    NEREUS_ASSIGN_OR_RETURN(const bool landed,
                            Land(event, message, event.frames_done, handler));
    if (!landed) return false;
    // A frame may have been the last of its epoch.
    if (event.connection->disowned()) return true;
  }
  return true;
}

absl::StatusOr<bool> GrpcTransport::Land(const GrpcEvent& event,
                                         const IncomingMessage& message,
                                         size_t index, FrameHandler& handler) {
  const FrameHeader& header = message.header(index);
  NEREUS_ASSIGN_OR_RETURN(Landing landing,
                          handler.OnHeader(event.peer, header));
  if (landing.kind == Landing::Kind::kWait) return false;
  if (landing.kind == Landing::Kind::kDiscard) {
    event.connection->CountReceived(kFrameHeaderBytes + header.payload_bytes);
    return true;
  }
  Frame frame;
  frame.header = header;
  frame.payload = landing.kind == Landing::Kind::kPlace
                      ? std::move(landing.place)
                      : Buffer::View(scratch_.data(), header.payload_bytes);
  NEREUS_CHECK(frame.payload.bytes() == header.payload_bytes)
      << DescribeFrame(header) << ": was given a place of "
      << frame.payload.bytes() << " bytes";
  message.CopyPayload(index, frame.payload.data());
  NEREUS_RETURN_IF_ERROR(CheckPayload(header, frame.payload));
  event.connection->CountReceived(kFrameHeaderBytes + header.payload_bytes);
  handler.OnFrame(event.peer, frame);
  return true;
}

void GrpcTransport::Shutdown(absl::Duration timeout) {
  if (std::exchange(shut_down_, true)) return;
  waiting_.clear();
  hub_->Shutdown(absl::Now() + timeout);
  // Only streams that were turned away may be left.
  endpoint_->server->Shutdown(absl::ToChronoTime(absl::Now()));
  endpoint_->server->Wait();
}

absl::Status GrpcTransportOptions::Validate() const {
  constexpr absl::string_view kName = "gRPC transport";
  NEREUS_RETURN_IF_ERROR(TransportOptions::Validate(kName));
  if (undelivered_max > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(kName, ": undelivered_max is ",
                                                 undelivered_max,
                                                 ", it must be positive"));
}

}  // namespace nereus
