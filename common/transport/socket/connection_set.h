#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/transport/socket/poller.h"
#include "common/transport/socket/socket_connection.h"

namespace nereus {

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
