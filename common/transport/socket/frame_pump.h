#pragma once

#include "common/transport/socket/connection_lifecycle.h"
#include "common/transport/socket/connection_set.h"
#include "common/transport/socket/socket_connection.h"

namespace nereus {

// Moves frames in and out of all connections of a transport. Gives each
// connection a turn of about 2 MiB (Channel), so that a fast peer does not keep
// the others waiting.
//
// Not thread-safe. Calls the handler, which may close any connection.
class FramePump {
 public:
  // The arguments must outlive this.
  FramePump(ConnectionSet& connections, ConnectionLifecycle& lifecycle)
      : connections_(connections), lifecycle_(lifecycle) {}

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

 private:
  // Reads until no bytes are left, a frame must wait or the turn is over.
  void Read(SocketConnection& connection);
  // Writes one turn. Finishes an ending connection that has written everything.
  void Write(SocketConnection& connection);

  ConnectionSet& connections_;      // Says which connections have work.
  ConnectionLifecycle& lifecycle_;  // Acts on errors and handshakes.
};

}  // namespace nereus
