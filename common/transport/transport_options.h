#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace nereus {

struct TransportOptions {
  // Where to listen. `port` 0: one that is free, see Transport::port.
  std::string host = "127.0.0.1";
  int port = 0;

  // A stranger must have introduced itself by then; one attempt to connect
  // takes no longer either.
  absl::Duration handshake_timeout = absl::Seconds(10);

  // How many strangers may be doing so at a time; more are sent away.
  int handshakes_max = 256;

  // A peer that is told that its connection ends has this long to read it.
  absl::Duration closing_timeout = absl::Seconds(5);

  // Peers on the same host exchange frames through memory that both have, if
  // both are willing.
  bool shared_memory = true;

  // OK, or kInvalidArgument with the field and its value.
  absl::Status Validate() const;
};

}  // namespace nereus
