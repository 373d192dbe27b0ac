#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/base/status.h"

namespace nereus {

// Options of a transport. Every field has a working default.
struct TransportOptions {
  // Address to which peers connect, and at which this process listens unless
  // `listen` names another address, such as 0.0.0.0. `port` 0 takes a free
  // port, see Transport::port.
  std::string host = "127.0.0.1";
  std::string listen;
  int port = 0;

  // Longest time of one attempt to connect to a peer. Also the longest time
  // that a process which has connected to this one may take to introduce
  // itself.
  absl::Duration handshake_timeout = absl::Seconds(10);

  // Largest number of accepted connections that are in a handshake at a time.
  // The transport closes further connections at once.
  int handshakes_max = 256;

  // Longest time that this process waits for a refused peer to read the reason
  // and close its side.
  absl::Duration closing_timeout = absl::Seconds(5);

  // True if this side allows that frames to and from peers on the same host go
  // through shared memory. They do if both sides allow it and both can map the
  // memory.
  bool shared_memory = true;

  // Returns OK, or kInvalidArgument with the field and its value.
  absl::Status Validate() const;
};

}  // namespace nereus
