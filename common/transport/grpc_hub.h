#ifndef NEREUS_COMMON_TRANSPORT_GRPC_HUB_H_
#define NEREUS_COMMON_TRANSPORT_GRPC_HUB_H_

#include <grpcpp/support/byte_buffer.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/frame.h"
#include "common/protocol/hello.h"
#include "common/protocol/peer.h"
#include "common/transport/grpc_connection.h"
#include "common/transport/grpc_frames.h"
#include "common/transport/grpc_transport.h"
#include "common/transport/mailbox.h"
#include "common/transport/transport.h"

namespace nereus {

// What the owner of a transport is to hear, in order.
struct GrpcEvent {
  enum class Kind { kConnected, kMessage, kDisconnected };
  Kind kind = Kind::kMessage;
  PeerId peer;
  // Null when an attempt to connect has failed.
  std::shared_ptr<GrpcConnection> connection;
  std::unique_ptr<grpc::ByteBuffer> message;  // kMessage.
  // kDisconnected without a connection: why, and how often the owner had ended
  // the connection to the peer by then.
  absl::Status failure;
  int64_t disconnects = 0;
  size_t frames_done = 0;  // Of the message: those behind it had to wait.
};

// Which peers there are, how each is reached, and the handshakes. Internal to
// the gRPC transport.
//
// Thread-safe, but for what it says. Shared by the transport and by the
// connections, whose last callbacks may come late.
class GrpcHub final : public GrpcConnection::Listener,
                      public std::enable_shared_from_this<GrpcHub> {
 public:
  explicit GrpcHub(const GrpcTransportOptions& options);
  ~GrpcHub() override;

  // Starts the thread of retries and time limits, until Shutdown. Once.
  void Start();

  void SetRoster(const Hello& self, Roster roster);
  void Connect(PeerId peer, const std::string& address, absl::Time deadline);
  void Disconnect(PeerId peer);
  void Send(PeerId to, const Frame& frame);
  std::vector<TrafficCount> traffic() const;

  // Takes a stream that has come in.
  grpc::ServerGenericBidiReactor* Accept(
      grpc::GenericCallbackServerContext* context);

  // For the owner's thread. Disconnected: the owner is about to be told of
  // `event`, and what it sends from now on is for a new connection; false: it
  // is not to be told, it has called Disconnect since.
  std::deque<GrpcEvent> TakeEvents(absl::Duration timeout);
  void Wake();
  bool Disconnected(const GrpcEvent& event);

  // Tells the peer why, then ends the connection.
  void Refuse(const std::shared_ptr<GrpcConnection>& connection,
              const absl::Status& reason);

  // The peer has sent a refusal with this reason.
  void RefusedByPeer(const std::shared_ptr<GrpcConnection>& connection,
                     const std::string& reason);

  // As Transport::Shutdown, but for the server. No connection is left
  // afterwards, and every stream that comes in is turned away. Once.
  void Shutdown(absl::Time deadline);

  void OnMessage(const std::shared_ptr<GrpcConnection>& connection,
                 std::unique_ptr<grpc::ByteBuffer> message) override;
  void OnClosed(const std::shared_ptr<GrpcConnection>& connection) override;

 private:
  using ConnectionPtr = std::shared_ptr<GrpcConnection>;
  using Frames = std::deque<GrpcConnection::OutgoingPtr>;

  // What is known about one peer.
  struct Link {
    enum class State {
      kIdle,        // Frames wait for whoever connects.
      kConnecting,  // This side dials, or is about to.
      kUp,          // `connection` is open.
      kEnded,       // The owner has not heard yet: frames are dropped.
    };
    State state = State::kIdle;
    ConnectionPtr connection;  // Open, ended, or the attempt under way.
    Frames waiting;            // kIdle and kConnecting.
    std::shared_ptr<TrafficCounters> traffic;
    int64_t disconnects = 0;  // By the owner.

    // kConnecting.
    std::string address;
    absl::Time deadline;
    absl::Time next_attempt;
    absl::Duration backoff;
    std::string last_error;
  };

  // A connection that gRPC has not finished with.
  struct Live {
    ConnectionPtr connection;
    absl::Time abort_at = absl::InfiniteFuture();
    std::string abort_reason;
    std::optional<PeerId> dialled;
    bool stranger = false;  // Came in, and has not introduced itself.
  };

  // What the timer thread does without the lock.
  struct Due {
    std::vector<std::pair<PeerId, std::string>> attempts;
    std::vector<std::pair<ConnectionPtr, absl::Status>> aborts;
    Frames dropped;
    absl::Time next = absl::InfiniteFuture();
  };

  void RunTimers();
  void Attempt(PeerId peer, const std::string& address);

  // The handshake: a stranger's first message, the answer to ours.
  void OnIntroduction(const ConnectionPtr& connection,
                      const grpc::ByteBuffer& message);
  absl::Status Admit(const ConnectionPtr& connection, const Hello& theirs);
  void OnAnswer(const ConnectionPtr& connection,
                const grpc::ByteBuffer& message);
  absl::Status Complete(const ConnectionPtr& connection, const Hello& theirs);

  // The parts of Shutdown.
  void StopAccepting();
  void StopTimers();
  void CloseAll(absl::Time deadline);

  GrpcConnection::OutgoingPtr Outgoing(Frame frame) const;

  // REQUIRES: mu_ is held, for all below. What they put into `dropped` must be
  // destroyed without it.
  Due CollectDue(absl::Time now);
  void CollectAttempt(PeerId peer, Link& link, absl::Time now, Due& due);
  void Establish(PeerId peer, Link& link, const ConnectionPtr& connection,
                 Frames first);
  void GiveUp(PeerId peer, Link& link, absl::Status failure, Frames& dropped);
  void AttemptClosed(PeerId peer, Link& link, Frames& dropped);
  void StopConnecting(Link& link, Frames& dropped);

  const GrpcTransportOptions options_;
  // Frames given to Send whose bytes are still needed, connections that exist.
  const std::shared_ptr<UseCount> unsent_;
  const std::shared_ptr<UseCount> connections_;
  Mailbox<GrpcEvent> events_;
  std::thread timers_;

  mutable std::mutex mu_;
  std::condition_variable timers_changed_;
  std::condition_variable closed_;
  // Guarded by mu_.
  std::optional<Hello> identity_;
  Roster roster_;
  absl::flat_hash_map<PeerId, Link> links_;
  absl::flat_hash_map<GrpcConnection*, Live> live_;
  int strangers_ = 0;
  bool stopping_ = false;  // No new connections, no new frames.
  bool stopped_ = false;   // The timer thread must end.
};

}  // namespace nereus

#endif  // NEREUS_COMMON_TRANSPORT_GRPC_HUB_H_
