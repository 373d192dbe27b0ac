#include "common/transport/socket/connection_set.h"

#include <algorithm>
#include <utility>

namespace nereus {

SocketConnection& ConnectionSet::Add(
    std::unique_ptr<SocketConnection> connection) {
  SocketConnection& added = *connection;
  connections_[&added] = std::move(connection);
  if (added.state() == SocketConnection::State::kStranger) {
    strangers_.push_back(&added);
  }
  added.Watch();
  return added;
}

ConnectionSet::List ConnectionSet::All() const {
  List all;
  for (const auto& [connection, owned] : connections_) {
    all.push_back(connection);
  }
  return all;
}

void ConnectionSet::Mark(SocketConnection& connection, Work work) {
  if (connection.is_closed() || connection.has(work)) return;
  // The flag keeps a connection from being in a list twice.
  connection.set_has(work, true);
  marked_[static_cast<size_t>(work)].push_back(&connection);
}

void ConnectionSet::OnOpen(SocketConnection& connection, bool is_polled) {
  std::erase(strangers_, &connection);
  if (!is_polled) unpolled_.push_back(&connection);
}

void ConnectionSet::OnClosed(SocketConnection& connection) {
  std::erase(strangers_, &connection);
  const auto found = connections_.find(&connection);
  closed_.push_back(std::move(found->second));
  connections_.erase(found);
}

void ConnectionSet::Due(absl::Time when) { due_at_ = std::min(due_at_, when); }

ConnectionSet::List ConnectionSet::TakeLate(absl::Time now) {
  // The connections of attempts have no deadline here, because PeerLinks ends
  // attempts.
  List late;
  if (now < due_at_) return late;
  due_at_ = absl::InfiniteFuture();
  for (auto& [connection, owned] : connections_) {
    if (connection->deadline() <= now) {
      late.push_back(connection);
    } else {
      Due(connection->deadline());
    }
  }
  return late;
}

void ConnectionSet::Sweep() {
  // First removes the connections that are destroyed here from all lists.
  if (closed_.empty()) return;
  const auto is_closed = [](const SocketConnection* connection) {
    return connection->is_closed();
  };
  for (List& marked : marked_) std::erase_if(marked, is_closed);
  std::erase_if(unpolled_, is_closed);
  // The owner of a released payload may call Send, which uses this set.
  std::exchange(closed_, {}).clear();
}

}  // namespace nereus
