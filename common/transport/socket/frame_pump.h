#pragma once

#include "common/transport/socket/connection_lifecycle.h"
#include "common/transport/socket/connection_set.h"
#include "common/transport/socket/socket_connection.h"

namespace nereus {

// Moves frames in and out of all connections of a transport, in turns, so that
// a fast peer does not keep the others waiting.
//
// Not thread-safe. Calls the handler, which may close any connection.
class FramePump {
 public:
  // The arguments must outlive this.
  FramePump(ConnectionSet& connections, ConnectionLifecycle& lifecycle)
      : connections_(connections), lifecycle_(lifecycle) {}

  // Handles events of the poller for `connection`.
  void OnEvents(SocketConnection& connection, uint32_t events);

  // Writes queued frames, for one turn of each connection. Goes on with
  // connections that get new frames meanwhile.
  void WriteAll();

  // Writes queued frames, for one turn of each open connection. Leaves errors
  // to WriteAll: the handler must hear of them, but the handler may be the
  // caller of this function.
  void WriteEarly();

  // Goes on with connections that had more to read than one turn.
  void ReadMore();

  // Announces the frames again that the handler has made wait.
  void Retry();

  // Reads and writes frames in shared memory, where the poller sees nothing.
  void RunUnpolled();
  // True if shared memory has a frame to read.
  bool HasUnpolledFrames() const;
  // Announces that this side may sleep. Returns true if each peer with shared
  // memory will then ring when there is something to do; false if there is
  // something to do already.
  bool MaySleep();

 private:
  // Reads until no bytes are left, a frame must wait or the turn is over.
  void Read(SocketConnection& connection);
  // Writes one turn, and finishes a connection that ends.
  void Write(SocketConnection& connection);

  ConnectionSet& connections_;      // Says which connections have work.
  ConnectionLifecycle& lifecycle_;  // Acts on errors and handshakes.
};

}  // namespace nereus
