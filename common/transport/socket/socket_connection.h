#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/peer.h"
#include "common/transport/connection.h"
#include "common/transport/handshake.h"
#include "common/transport/socket/channel.h"
#include "common/transport/socket/frame_writer.h"
#include "common/transport/socket/memory_channel.h"
#include "common/transport/socket/poller.h"
#include "common/transport/socket/socket_channel.h"

namespace nereus {

class ConnectionSet;

// Kinds of work that may wait on a connection. ConnectionSet has a list of
// connections for each kind.
enum class Work {
  kWrite,  // Frames are queued.
  kRead,   // More frames have arrived than one Channel::Receive delivers.
  kRetry,  // The handler could not take a received frame (Landing::kWait): the
           // channel must announce the frame to the handler again.
};
inline constexpr size_t kWorkKinds = 3;

// TCP connection of a SocketTransport: its socket, the frames that wait to be
// written, and the channel through which frames go. A SocketConnection knows
// its state and carries out single steps; EventLoop decides on the
// steps.
//
//   dialled:   dialling ----> greeting ------+
//                                            +----> open ----> ending
//   accepted:  stranger ----> introducing ---+
//
// Two transitions are not drawn: from any open or unfinished connection to
// ending, which sends a last frame, and from any state to closed.
//
// Not thread-safe. Belongs to a ConnectionSet, which destroys it some time
// after Close, never within a function of the connection. So a function that
// calls another one, which may close the connection, checks is_closed() and
// returns.
class SocketConnection final : public Connection {
 public:
  enum class State {
    kDialling,     // TCP connects.
    kStranger,     // Accepted; its preamble has not arrived.
    kIntroducing,  // Its preamble is valid; its hello has not arrived.
    kGreeting,     // This side has sent its hello; the answer has not come.
    kOpen,         // Frames go both ways.
    kEnding,       // A last frame is being sent; received bytes are dropped.
    kClosed,
  };

  // `set` and `delivery` must outlive this. `state`: kDialling or kStranger.
  SocketConnection(Descriptor socket, std::string address, State state,
                   ConnectionSet& set, Delivery& delivery);

  void Send(Frame frame) override;
  void Close() override;
  void Abort() override;
  bool HasEnded() const override;
  const std::string& address() const override { return address_; }

  State state() const { return state_; }
  bool is_open() const { return state_ == State::kOpen; }
  bool is_closed() const { return state_ == State::kClosed; }
  const Descriptor& socket() const { return socket_; }

  // Peer at the other end. Not set for an accepted connection before it opens.
  PeerId peer() const { return peer_; }
  void set_peer(PeerId peer) { peer_ = peer; }

  // Time at which the transport closes the connection. Finite only for an
  // accepted connection before it opens, and for a connection that this side
  // refuses.
  absl::Time deadline() const { return deadline_; }
  void SetDeadline(absl::Time deadline);

  // True if this side reads from the connection. It does not read while it
  // dials, or while a received frame waits for its delivery.
  bool reads() const;
  // True if the connection has this work to do.
  bool has(Work work) const { return has_work_[static_cast<size_t>(work)]; }
  void set_has(Work work, bool has) {
    has_work_[static_cast<size_t>(work)] = has;
  }

  // Tells the poller for which events this connection waits now.
  void Watch();

  // Reads the preamble of a stranger, and makes its state kIntroducing. Returns
  // false if the preamble has not all arrived. Errors: as
  // SocketChannel::ReadPreamble.
  absl::StatusOr<bool> ReadPreamble(PreambleBytes& preamble);

  // Greets the peer that has been dialled. `offered`: the memory that `hello`
  // offers, or null.
  void Greet(const PreambleBytes& preamble, Frame hello,
             std::unique_ptr<MemoryChannel> offered);

  // Takes the memory that Greet offered; null if it offered none.
  std::unique_ptr<MemoryChannel> TakeOffered() { return std::move(offered_); }

  // Begins the exchange of frames with `peer`: through `memory`, or through the
  // socket if `memory` is null.
  void Open(PeerId peer, TrafficCounters& counters,
            std::unique_ptr<MemoryChannel> memory);

  // Sends `last` after all queued frames. Delivers no frame from now on.
  void End(Frame last);

  // Adds the time since the last call in which the network was slower than this
  // process to the counters of Open. Returns false if frames go through shared
  // memory, so that there is no such time. REQUIRES: the connection is open.
  bool MeasureLink();

  // Returns the time for which nothing of the peer has arrived: adds `passed`,
  // the time since the last call, or begins anew if anything has arrived since,
  // or waits here to be read. REQUIRES: the connection is open.
  absl::Duration NoteSilence(absl::Duration passed);

  // Moves queued frames into the channel; see Channel::Write.
  absl::StatusOr<bool> Write() { return channel_->Write(writer_); }

  Channel& channel() { return *channel_; }
  FrameWriter& writer() { return writer_; }

 private:
  ConnectionSet& set_;         // Owns this.
  Descriptor socket_;          // Not valid after Close.
  const std::string address_;  // See address().
  State state_;
  PeerId peer_;                          // See peer().
  TrafficCounters* counters_ = nullptr;  // Null before kOpen.
  FrameWriter writer_;                   // Frames that are not written yet.
  std::unique_ptr<Channel> channel_;     // Never null.
  // Offer that the peer has not answered.
  std::unique_ptr<MemoryChannel> offered_;
  std::array<bool, kWorkKinds> has_work_ = {};    // See has().
  absl::Time deadline_ = absl::InfiniteFuture();  // See deadline().
  absl::Duration silent_for_;                     // See NoteSilence().
};

// All connections of a transport. For each kind of work (Work), the set lists
// the connections that have this work to do.
//
// A closed connection stays in memory until Sweep: events, lists and functions
// that are running may still refer to it. Code that has such a reference must
// check is_closed().
//
// Not thread-safe.
class ConnectionSet {
 public:
  // `poller` must outlive this.
  explicit ConnectionSet(Poller& poller) : poller_(poller) {}

  Poller& poller() { return poller_; }
  bool empty() const { return connections_.empty(); }

  SocketConnection& Add(std::unique_ptr<SocketConnection> connection);

  // Returns the connections that are not closed now.
  std::vector<SocketConnection*> All() const;

  // Calls `each` with every connection. `each` must not open or close
  // connections.
  template <typename Each>
  void ForEach(Each each) {
    for (auto& [connection, owned] : connections_) each(*connection);
  }

  // Notes that `connection` has this work to do, unless it is closed.
  void Mark(SocketConnection& connection, Work work);

  // True if a connection is marked with this work. The connection may have
  // closed since.
  bool Has(Work work) const {
    return !marked_[static_cast<size_t>(work)].empty();
  }

  // Calls `each` with the connections that are marked with this work now, and
  // skips closed ones. Connections that are marked during the call are for the
  // next call. Reuses its memory, so it soon allocates none. REQUIRES: `each`
  // does not call ForMarked for the same work.
  template <typename Each>
  void ForMarked(Work work, Each each) {
    std::vector<SocketConnection*>& taken = taken_[static_cast<size_t>(work)];
    taken.swap(marked_[static_cast<size_t>(work)]);
    for (SocketConnection* const connection : taken) {
      connection->set_has(work, false);
      if (!connection->is_closed()) each(*connection);
    }
    taken.clear();
  }

  // Connections through shared memory, whose frames the poller does not see.
  // Some of the connections may be closed.
  const std::vector<SocketConnection*>& unpolled() const { return unpolled_; }

  // Number of accepted connections that have never opened and are not closed.
  int strangers() const { return static_cast<int>(strangers_.size()); }

  // Notes that `connection` has opened, and thus is not a stranger any more.
  // `is_polled`: false if its frames go through shared memory.
  void OnOpen(SocketConnection& connection, bool is_polled);

  // Takes the closed `connection` out of the set. It stays in memory until
  // Sweep.
  void OnClosed(SocketConnection& connection);

  // Makes due_at() at most `when`.
  void Due(absl::Time when);
  absl::Time due_at() const { return due_at_; }
  // Returns the connections that are past their deadline.
  std::vector<SocketConnection*> TakeLate(absl::Time now);

  // Destroys closed connections. This releases payloads, and their owners may
  // call Send.
  void Sweep();

 private:
  using List = std::vector<SocketConnection*>;

  Poller& poller_;
  // Connections that are not closed; the keys are the values' pointers.
  absl::flat_hash_map<SocketConnection*, std::unique_ptr<SocketConnection>>
      connections_;
  // Closed connections, until Sweep.
  std::vector<std::unique_ptr<SocketConnection>> closed_;
  // Connections that are marked, by kind of work (marked_), and connections for
  // which a running ForMarked calls `each` (taken_). ForMarked swaps the two
  // lists, so that their memory is reused.
  std::array<List, kWorkKinds> marked_;
  std::array<List, kWorkKinds> taken_;
  List unpolled_;                               // See unpolled().
  List strangers_;                              // See strangers().
  absl::Time due_at_ = absl::InfiniteFuture();  // No later than any deadline.
};

}  // namespace nereus
