#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/socket.h"
#include "common/tensor/buffer.h"
#include "common/transport/socket/resolver.h"
#include "common/transport/socket/socket_connection.h"
#include "common/transport/transport.h"
#include "common/transport/transport_options.h"

namespace nereus {

// Moves frames over plain TCP connections, one per peer: payloads go from where
// they lie into the kernel, and from there to where the handler wants them; or,
// between two processes on one host, through memory (socket_shared.cc).
//
// It has no thread: all that goes in and out does in Poll, on the thread that
// also does the arithmetic, which finds the bytes in its cache. So nothing
// moves, and no frame leaves, while nobody is in Poll.
//
// Who connects must know whom it means, and that one's incarnation, which
// members of a job learn from its coordinator alone: it is compared, in
// constant time, before any frame is read.
//
// Frames for a peer are dropped if its connection ends, or cannot be made.
// Later ones wait for a new connection.
class SocketTransport final : public Transport {
 public:
  // Errors: kInvalidArgument, bad options; kUnavailable, the port is in use or
  // the host not of this machine, with "host:port".
  static absl::StatusOr<std::unique_ptr<Transport>> Start(
      const TransportOptions& options);

  // Without a Shutdown before, as Shutdown(0).
  ~SocketTransport() override;

  int port() const override { return listener_.port; }
  void SetRoster(const Hello& self, Roster roster) override;
  void Connect(PeerId peer, const std::string& address,
               absl::Time deadline) override;
  void Disconnect(PeerId peer) override;
  void Send(PeerId to, const Frame& frame) override;
  void MoveToThisThread() override;
  void Flush() override;
  void Poll(absl::Duration timeout, FrameHandler& handler) override;
  void Wake() override;
  std::vector<TrafficCount> traffic() const override;
  void Shutdown(absl::Duration timeout) override;

 private:
  using Connection = SocketConnection;
  using ConnectionPtr = std::shared_ptr<Connection>;

  // What is known about one peer.
  struct Link {
    enum class State {
      kIdle,        // Frames wait for whoever connects.
      kConnecting,  // This side dials, or is about to.
      kUp,          // `connection` is open.
    };
    State state = State::kIdle;
    ConnectionPtr connection;   // Open, or the attempt under way.
    std::deque<Frame> waiting;  // Unless kUp.

    // kConnecting.
    std::string address;
    absl::Time deadline;
    absl::Time next_attempt;
    absl::Duration backoff;
    std::string last_error;
    bool attempted = false;
    bool resolving = false;
    std::vector<SocketAddress> found;  // Of `address`, not tried yet.
  };

  SocketTransport(const TransportOptions& options, Listener listener,
                  Descriptor epoll, Descriptor wake);

  // Once around, for Poll and Shutdown. socket_transport.cc
  void Turn(absl::Duration timeout);
  // Before it sleeps: whether something has come.
  bool LookForAWhile();
  void TakeInbox();
  void SendHere(PeerId to, Frame frame);
  void MarkDirty(Connection& connection);
  void FlushDirty();
  void Flush(Connection& connection);
  void Watch(Connection& connection, uint32_t events);
  void Close(Connection& connection);
  // Sends `last` after what it is sending, and hears nothing more.
  void BeginEnding(Connection& connection, Frame last);
  void CloseAll(absl::Time deadline);
  bool HasUnsent() const;

  // Connections that this side makes. socket_links.cc
  void RunTimers();
  void Due(absl::Time when) { due_ = std::min(due_, when); }
  void RunAttempts(absl::Time now);
  void Attempt(PeerId peer, Link& link);
  void TakeAnswers();
  void OnDialled(Connection& connection);
  void AttemptFailed(Connection& connection, const absl::Status& reason);
  void AttemptOver(PeerId peer, const absl::Status& reason);
  void GiveUp(PeerId peer, const absl::Status& reason);
  void StopConnecting(Link& link);

  // Those that come in, and who is at the other end. socket_handshake.cc
  void AcceptAll();
  void WatchListener(bool on);
  absl::Status ReadPreamble(Connection& connection);
  void OnIntroduction(Connection& connection, const Frame& frame);
  absl::Status Admit(Connection& connection, const Hello& theirs);
  void OnAnswer(Connection& connection, const Frame& frame);
  absl::Status Complete(Connection& connection, const Hello& theirs);
  void Establish(Connection& connection, PeerId peer);
  void Refuse(Connection& connection, const absl::Status& reason);
  void RefusedByPeer(Connection& connection, const std::string& reason);

  // What comes in. socket_receive.cc; false: not now, or never.
  void Receive(Connection& connection);
  bool Announce(Connection& connection);
  absl::StatusOr<Landing> LandingOf(const Connection& connection,
                                    const FrameHeader& header);
  bool Land(Connection& connection, absl::StatusOr<Landing> landing);
  bool Take(Connection& connection);
  bool TakeSmall(Connection& connection);
  bool Deliver(Connection& connection);
  void RetryWaiting();
  void Broken(Connection& connection, const absl::Status& reason);
  void Lost(Connection& connection, const absl::Status& reason);
  void Detach(Connection& connection, const absl::Status& reason);
  // Through memory. socket_shared.cc
  void Offer(Connection& connection, Hello& hello);
  absl::Status TakeAnswerTo(Connection& connection, const Hello& theirs);
  std::unique_ptr<SharedFrames> TakeOffer(const Connection& connection,
                                          const Hello& theirs) const;
  void ReceiveShared(Connection& connection);
  bool TakeShared(Connection& connection, Frame frame);
  void FlushShared(Connection& connection);
  // Whether there is nothing to do; else nobody would wake this side.
  bool MaySleep();
  void RunShared();

  Buffer TakeScratch();
  void GiveScratchBack(Connection& connection);

  const TransportOptions options_;
  Listener listener_;
  const Descriptor epoll_;
  const Descriptor wake_;  // Readable: look at the inbox.
  std::atomic<bool> woken_{false};
  std::atomic<std::thread::id> poll_thread_{};

  // The thread's own.
  FrameHandler* handler_ = nullptr;  // While in Poll.
  std::optional<Hello> identity_;
  Roster roster_;
  std::map<PeerId, Link> links_;
  absl::flat_hash_map<Connection*, ConnectionPtr> connections_;
  std::vector<ConnectionPtr> gone_;   // Destroyed at the end of a turn.
  std::vector<ConnectionPtr> dirty_;  // With frames to write.
  std::vector<ConnectionPtr> again_;  // With more to read than a turn has.
  std::vector<ConnectionPtr> dirty_taken_;  // Of the two, under way.
  std::vector<ConnectionPtr> again_taken_;
  std::vector<ConnectionPtr> waiting_;  // With a frame that waits.
  std::vector<ConnectionPtr> shared_;   // By memory; maybe some that are gone.
  std::vector<Buffer> scratches_;       // Not in use.
  int strangers_ = 0;
  // Nobody is accepted before this: there are no descriptors left.
  absl::Time accept_at_ = absl::InfiniteFuture();
  int64_t deliveries_ = 0;  // What the handler has been called, or may have.
  absl::Time due_ = absl::InfinitePast();  // Of timers, the first.
  bool delivered_ = false;                 // In this turn.
  absl::Duration last_sleep_ = absl::InfiniteDuration();  // In epoll.
  bool stopping_ = false;
  bool shut_down_ = false;

  std::atomic<bool> inbox_used_{false};
  std::mutex inbox_mu_;
  bool inbox_closed_ = false;                    // Guarded by inbox_mu_.
  std::vector<std::pair<PeerId, Frame>> inbox_;  // Guarded by inbox_mu_.
  mutable std::mutex traffic_mu_;
  // Guarded by traffic_mu_.
  std::map<PeerId, std::shared_ptr<TrafficCounters>> traffic_;

  std::optional<Resolver> resolver_;  // Last: its thread calls Wake.
};

}  // namespace nereus
