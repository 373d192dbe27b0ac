#pragma once

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/log_repeats.h"
#include "common/base/socket.h"
#include "common/transport/socket/poller.h"

namespace nereus {

// Accepts connections at the data port. Pauses while the process has no
// descriptors left. Closes new connections at once while too many strangers are
// connected.
//
// A stranger is a process that has connected and is not admitted yet. Without a
// limit, strangers that say nothing would use up this process's descriptors.
//
// Not thread-safe.
class PeerAcceptor {
 public:
  // `strangers_max`: largest number of strangers at a time. `poller` must
  // outlive this. The poller reports events of the port with `this` as their
  // owner.
  PeerAcceptor(Listener listener, int strangers_max, Poller& poller);

  int port() const { return listener_.port; }

  // Accepts up to 64 of the connections that wait, and returns them.
  // `strangers`: number of strangers before the call. Closes the connections
  // beyond the limit of strangers instead of returning them.
  std::vector<Accepted> AcceptSome(int strangers, absl::Time now);

  // Time at which Resume has something to do.
  absl::Time due_at() const { return resume_at_; }
  // Makes the poller report connections again, once a pause for lack of
  // descriptors is over.
  void Resume(absl::Time now);

  // Accepts nothing more.
  void Close();

 private:
  Listener listener_;        // The data port; not valid after Close.
  const int strangers_max_;  // Largest number of strangers.
  Poller& poller_;           // Watches the port, except in a pause.
  absl::Time resume_at_ = absl::InfiniteFuture();  // End of the pause, if any.
  LogRepeats shortages_;  // Log lines about a lack of descriptors.
};

}  // namespace nereus
