#ifndef NEREUS_COMMON_TRANSPORT_GRPC_TRANSPORT_H_
#define NEREUS_COMMON_TRANSPORT_GRPC_TRANSPORT_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/tensor/buffer.h"
#include "common/transport/transport.h"
#include "common/transport/transport_options.h"

namespace nereus {

// Of the implementation, where the headers of gRPC are.
class GrpcHub;
class IncomingMessage;
struct GrpcEndpoint;
struct GrpcEvent;

struct GrpcTransportOptions : TransportOptions {
  // Frames per connection that may wait for Poll; then reading stops.
  int undelivered_max = 4;

  // OK, or kInvalidArgument with the field and its value.
  absl::Status Validate() const;
};

// Moves frames in bidirectional gRPC streams of byte buffers, one per
// connection, method /nereus.v1.Data/Frames; payloads are neither copied on
// their way out nor seen by Protobuf. For networks where one HTTP/2 port is all
// that is allowed.
//
// Frames for a peer are dropped if its connection ends, or cannot be made, and
// so are those that are sent from then until the handler has heard of it. Later
// ones wait for a new connection.
//
// A frame that is refused, by OnHeader or for its checksum, ends its connection
// after those before it were delivered; the peer is told the reason. A place
// that OnHeader gave must be taken as overwritten even if OnFrame does not
// follow.
//
// Starts threads of gRPC's and one of its own, for retries and time limits.
class GrpcTransport final : public Transport {
 public:
  // Errors: kInvalidArgument, bad options; kUnavailable, the port is in use or
  // the host not of this machine, with "host:port".
  static absl::StatusOr<std::unique_ptr<Transport>> Start(
      const GrpcTransportOptions& options);

  // Without a Shutdown before, as Shutdown(0).
  ~GrpcTransport() override;

  int port() const override;
  void SetRoster(const Hello& self, Roster roster) override;
  void Connect(PeerId peer, const std::string& address,
               absl::Time deadline) override;
  void Disconnect(PeerId peer) override;
  void Send(PeerId to, const Frame& frame) override;
  void Poll(absl::Duration timeout, FrameHandler& handler) override;
  void Wake() override;
  std::vector<TrafficCount> traffic() const override;
  void Shutdown(absl::Duration timeout) override;

 private:
  GrpcTransport(std::shared_ptr<GrpcHub> hub,
                std::unique_ptr<GrpcEndpoint> endpoint);

  // False: the event is to be delivered again later, and before any other of
  // its peer.
  bool Deliver(GrpcEvent& event, FrameHandler& handler);
  bool DeliverMessage(GrpcEvent& event, FrameHandler& handler);
  void DeliverEnd(const GrpcEvent& event, FrameHandler& handler);
  // Whether any was delivered.
  bool RetryWaiting(FrameHandler& handler);

  // Lands what is left of a message, or one frame of it; false: not yet. An
  // error is the peer's fault.
  absl::StatusOr<bool> Receive(GrpcEvent& event, FrameHandler& handler);
  absl::StatusOr<bool> Land(const GrpcEvent& event,
                            const IncomingMessage& message, size_t index,
                            FrameHandler& handler);

  // Shared with the connections, whose last callbacks may come late.
  const std::shared_ptr<GrpcHub> hub_;
  const std::unique_ptr<GrpcEndpoint> endpoint_;
  // For Poll: payloads that have no other place, and what is to be delivered
  // again, in order.
  const Buffer scratch_;
  std::map<PeerId, std::deque<GrpcEvent>> waiting_;
  bool shut_down_ = false;
};

}  // namespace nereus

#endif  // NEREUS_COMMON_TRANSPORT_GRPC_TRANSPORT_H_
