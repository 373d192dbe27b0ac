#pragma once

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/socket.h"
#include "common/transport/socket/poller.h"

namespace nereus {

// Accepts the connections that come in at the data port, as long as the process
// has descriptors and few strangers are connected.
//
// A stranger is a process that has connected and not been admitted yet. Without
// a limit, processes that connect and say nothing would use up this process's
// descriptors.
//
// Not thread-safe.
class PeerAcceptor {
 public:
  // `strangers_max`: limit of strangers at a time. `poller` must outlive this,
  // and returns `this` as the owner of the port's events.
  PeerAcceptor(Listener listener, int strangers_max, Poller& poller);

  int port() const { return listener_.port; }

  // Returns new connections, of which more may be there. `strangers`: number of
  // them now; connections beyond the limit are closed.
  std::vector<Accepted> AcceptSome(int strangers, absl::Time now);

  // Time at which Resume has something to do.
  absl::Time due_at() const { return resume_at_; }
  // Accepts again after a pause for lack of descriptors, once it is over.
  void Resume(absl::Time now);

  // Accepts nothing more.
  void Close();

 private:
  Listener listener_;        // The data port; not valid after Close.
  const int strangers_max_;  // Limit of connections in a handshake.
  Poller& poller_;           // Watches the port, except in a pause.
  absl::Time resume_at_ = absl::InfiniteFuture();  // End of the pause, if any.
};

}  // namespace nereus
