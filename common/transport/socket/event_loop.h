#pragma once

#include <memory>

#include "absl/time/time.h"
#include "common/base/log_repeats.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/hello.h"
#include "common/transport/peer_links.h"
#include "common/transport/socket/channel.h"
#include "common/transport/socket/dialler.h"
#include "common/transport/socket/memory_channel.h"
#include "common/transport/socket/socket_connection.h"
#include "common/transport/transport_options.h"

namespace nereus {

// Opens and ends connections, and moves frames through them. It carries out
// what PeerLinks decides, runs the handshake on a socket, and tells the handler
// which peers came and went. socket_connection.h draws the states. It gives
// each connection a turn of about 2 MiB (Channel), so that a fast peer does not
// keep the others waiting.
//
// Not thread-safe. Most methods may call the handler, which may close any
// connection.
class EventLoop {
 public:
  // All arguments but `options` must outlive this.
  EventLoop(const TransportOptions& options, PeerLinks& links,
            ConnectionSet& connections, Delivery& delivery,
            TrafficTable& traffic, Dialler& dialler);

  // Adds the connection of a stranger, which must introduce itself within
  // TransportOptions::handshake_timeout.
  void OnAccepted(Accepted accepted, absl::Time now);

  // Ends an open connection on which nothing has arrived for `silence`. Tells
  // the peer, which may hear it if only one direction is cut off.
  void EndSilent(SocketConnection& connection, absl::Duration silence);

  // Handles events of the poller for `connection`.
  void OnEvents(SocketConnection& connection, uint32_t events);

  // Writes queued frames, for one turn of each connection that is marked with
  // Work::kWrite. Goes on with connections that get new frames meanwhile.
  void WriteAll();

  // Writes queued frames, for one turn of each open connection. Leaves errors
  // to WriteAll: the handler must hear of errors, but here the handler itself
  // may be the caller.
  void WriteEarly();

  // Goes on with connections that had more to read than one turn.
  void ReadMore();

  // Announces again the frames for which the handler has returned kWait.
  void Retry();

  // Reads and writes frames in shared memory, where the poller sees nothing.
  void RunUnpolled();
  // True if shared memory has a frame to read.
  bool HasUnpolledFrames() const;
  // Announces that this side may sleep. Returns true if each peer with shared
  // memory will ring its bell when there is something to do; false if there
  // already is.
  bool MaySleep();

  // Returns a refusal with `reason`, or a goodbye if `reason` is OK.
  Frame LastFrame(const absl::Status& reason) const;

  // Ends attempts and connections that are past their deadline, and begins the
  // attempts that are due.
  void RunTimers(absl::Time now);

 private:
  // Reads until no bytes are left, a frame must wait or the turn is over.
  void Read(SocketConnection& connection);
  // Writes one turn. Finishes an ending connection that has written everything.
  void Write(SocketConnection& connection);

  // Begins the attempt: dials, or asks a name server first.
  void Dial(const PeerLinks::Attempt& attempt, absl::Time now);

  // Called when TCP has connected the dialled `connection`, or could not. Sends
  // the greeting, or ends the attempt.
  void OnDialled(SocketConnection& connection);

  // Reads and checks the preamble of a stranger. If it has not arrived
  // completely, returns OK and leaves the connection a stranger. Errors: the
  // caller passes the error to OnBroken.
  absl::Status ReadPreamble(SocketConnection& connection);

  // Handles a frame of the handshake, or a refusal.
  void OnHandshakeFrame(SocketConnection& connection, const Frame& frame);

  // Ends a connection that is lost, or whose bytes this side refuses: an
  // invalid frame, or a preamble that is invalid or meant for another process.
  // `reason` is kInvalidArgument if the bytes are invalid.
  void OnBroken(SocketConnection& connection, const absl::Status& reason);

  // Tells the peer the reason in a last frame, and ends the connection.
  void Refuse(SocketConnection& connection, const absl::Status& reason);

  // Sends the reason in a last frame and closes the connection after it. Ends
  // the link or the attempt of the connection.
  void EndWith(SocketConnection& connection, const absl::Status& reason);
  // Admits the process that introduces itself with `hello`, and opens the
  // connection. Errors: the caller passes the error to Refuse.
  absl::Status Admit(SocketConnection& connection, const Frame& hello);
  // Checks the answer `hello` of the dialled process, and opens the connection.
  // Errors: the caller passes the error to Refuse.
  absl::Status Complete(SocketConnection& connection, const Frame& hello);
  // Counts the refusal of a stranger, and logs it unless it repeats others.
  void NoteStranger(const SocketConnection& connection,
                    const absl::Status& reason);
  // Opens the memory that the peer offers. Returns null if the peer offers none
  // or it cannot be opened: frames then go through the socket.
  std::unique_ptr<MemoryChannel> TakeOffer(const SocketConnection& connection,
                                           const Hello& theirs) const;
  // Returns the memory that this side has offered, or null if the peer has not
  // accepted it. Errors: the caller passes the error to Refuse.
  static absl::StatusOr<std::unique_ptr<MemoryChannel>> TakeAnswer(
      SocketConnection& connection, const Hello& theirs);
  // Opens the connection and its link, and tells the handler. `memory`: null if
  // frames go through the socket.
  void Open(SocketConnection& connection, PeerId peer,
            std::unique_ptr<MemoryChannel> memory);
  // Closes the connection after a refusal or goodbye of the peer. `reason`:
  // status of the refusal; OK for a goodbye.
  void OnRefused(SocketConnection& connection, const absl::Status& reason);
  // Ends the attempt of a dialled connection that never opened. Closes the
  // connection, unless its last frame is still to be sent. If `reason` is
  // kUnavailable, PeerLinks tries again; otherwise it gives the link up, and
  // this function tells the handler.
  void FailAttempt(SocketConnection& connection, const absl::Status& reason);
  // Ends the link of a connection that was open, and tells the handler.
  void Lose(SocketConnection& connection, const absl::Status& reason);

  const TransportOptions options_;
  PeerLinks& links_;            // Decides about links.
  ConnectionSet& connections_;  // Owns the connections that are made here.
  Delivery& delivery_;          // Tells the handler.
  TrafficTable& traffic_;       // Counts frames and refusals.
  Dialler& dialler_;            // Makes the sockets of attempts.
  LogRepeats refusals_;         // Log lines about refused strangers, by reason.
};

}  // namespace nereus
