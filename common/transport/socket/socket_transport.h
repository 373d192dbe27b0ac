#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/peer.h"
#include "common/transport/peer_links.h"
#include "common/transport/socket/channel.h"
#include "common/transport/socket/dialler.h"
#include "common/transport/socket/event_loop.h"
#include "common/transport/socket/peer_acceptor.h"
#include "common/transport/socket/poller.h"
#include "common/transport/socket/socket_connection.h"
#include "common/transport/transport.h"
#include "common/transport/transport_options.h"

namespace nereus {

// Keeps frames that other threads have sent until the polling thread takes
// them. Has no limit of its own. Thread-safe.
class Inbox {
 public:
  using Frames = std::vector<std::pair<PeerId, Frame>>;

  // Keeps `frame` for Take. After Close, drops the frame and returns false.
  bool Push(PeerId to, const Frame& frame) {
    std::lock_guard<std::mutex> lock(mu_);
    if (closed_) return false;
    frames_.emplace_back(to, frame);
    used_ = true;
    return true;
  }

  // Returns all frames, in the order of Push.
  Frames Take() {
    std::lock_guard<std::mutex> lock(mu_);
    used_ = false;
    return std::exchange(frames_, {});
  }

  // True if frames wait for Take. Takes no lock.
  bool used() const { return used_; }

  // Makes Push drop frames from now on.
  void Close() {
    std::lock_guard<std::mutex> lock(mu_);
    closed_ = true;
  }

 private:
  // True if frames_ is not empty. Set under mu_.
  std::atomic<bool> used_{false};
  std::mutex mu_;
  bool closed_ = false;  // Close was called. Guarded by mu_.
  Frames frames_;        // In the order of Push. Guarded by mu_.
};

// Moves frames over plain TCP connections, one per peer. The kernel reads
// outgoing payloads where they lie, and writes incoming payloads where the
// handler wants them. Between two processes on one host, frames go through
// shared memory instead, if both sides agree.
//
// The transport has no thread that moves frames. All bytes move in Poll, Flush
// and Shutdown. The thread that polls also does the arithmetic, so it finds the
// payloads in its cache. If the owner does not call Poll for long, nothing is
// read and the peers stand still. (The transport's only thread asks name
// servers: Resolver.)
//
// A process that connects must know the incarnation of this process. The
// coordinator tells it to members of the job only. The transport compares the
// incarnation, in constant time, before it reads any frame.
//
// The transport drops the frames for a peer when the connection ends or cannot
// be made. Frames that Send gets later wait for a new connection.
//
// The parts: PeerLinks decides which peers to dial and to admit;
// EventLoop carries that out, and moves frames through the Channel of each
// SocketConnection; Delivery calls the handler.
class SocketTransport final : public Transport {
 public:
  // Listens at once. Errors: kInvalidArgument, bad options; kUnavailable, the
  // process cannot listen at "host:port", or has no descriptors left.
  static absl::StatusOr<std::unique_ptr<Transport>> Start(
      const TransportOptions& options);

  // Does what Shutdown(0) does, unless Shutdown was called before.
  ~SocketTransport() override;

  int port() const override { return acceptor_.port(); }
  void SetRoster(const Hello& self, Roster roster) override;
  void Connect(PeerId peer, const std::string& address,
               const ConnectLimits& limits) override;
  void Disconnect(PeerId peer) override;
  void Send(PeerId to, const Frame& frame) override;
  void MoveToThisThread() override;
  void Flush() override { loop_.WriteEarly(); }
  void Poll(absl::Duration timeout, FrameHandler& handler) override;
  void Wake() override { poller_->Wake(); }
  void LimitSilence(absl::Duration silence_max) override;
  void SendAlive() override;
  void MeasureLinks() override;
  std::vector<TrafficCount> traffic() const override {
    return traffic_.Counts();
  }
  ConnectionCounts connections() const override {
    return traffic_.connections();
  }
  void Shutdown(absl::Duration timeout) override;

 private:
  SocketTransport(const TransportOptions& options, Listener listener,
                  std::unique_ptr<Poller> poller);

  // Reads, writes and runs timers once; waits at most `timeout` for an event.
  void Turn(absl::Duration timeout);
  // Waits for events, at most `timeout`.
  absl::Span<const epoll_event> Wait(absl::Duration timeout);
  // Looks for frames and events for 50 us before a sleep. Returns true as soon
  // as a frame or an event is there.
  bool LookForAWhile() const;
  // Sends the frames that other threads have queued.
  void TakeInbox();
  // Queues the frames that SendAlive sends, if they are due.
  void QueueAlive(absl::Time now);
  // Ends the connections that have been silent for silence_max_.
  void EndSilent(absl::Time now);
  // Time between two looks at the silence of connections, and between two
  // frames that show that they work.
  absl::Duration alive_interval() const;
  // True if frames are left that can still reach their peers.
  bool HasUnsent();
  // Says goodbye to all peers. Waits for them to close their side, until
  // `deadline`, and closes all connections.
  void CloseAll(absl::Time deadline);

  // The members below synchronise themselves.
  // Thread that polls; Send there needs no inbox.
  std::atomic<std::thread::id> poll_thread_{};
  Inbox inbox_;  // Frames of other threads.
  TrafficTable traffic_;
  const std::unique_ptr<Poller> poller_;  // Never null.

  // The members below belong to the thread that polls. Each part is declared
  // after the parts that it uses.
  Delivery delivery_;          // Calls the handler.
  PeerLinks links_;            // Decides which connections to make.
  ConnectionSet connections_;  // Owns the connections.
  PeerAcceptor acceptor_;      // Accepts connections at port().
  Dialler dialler_;            // Begins connections. Its thread calls Wake.
  EventLoop loop_;             // Opens and ends connections, and moves frames.
  absl::Duration silence_max_ = absl::InfiniteDuration();  // LimitSilence.
  absl::Time alive_at_ = absl::InfiniteFuture();           // QueueAlive is due.
  absl::Time looked_at_ = absl::InfiniteFuture();  // Last look of EndSilent.
  bool shut_down_ = false;                         // Shutdown was called.
};

}  // namespace nereus
