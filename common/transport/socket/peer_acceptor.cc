#include "common/transport/socket/peer_acceptor.h"

#include "common/base/logging.h"

namespace nereus {
namespace {

// Largest number of connections accepted in one call. The others wait for the
// next call.
constexpr int kAcceptsPerTurn = 64;

// Pause after the process has run out of descriptors.
constexpr absl::Duration kPause = absl::Milliseconds(100);

}  // namespace

PeerAcceptor::PeerAcceptor(Listener listener, int strangers_max, Poller& poller)
    : listener_(std::move(listener)),
      strangers_max_(strangers_max),
      poller_(poller) {
  poller_.Watch(listener_.socket.get(), EPOLLIN, this);
}

std::vector<Accepted> PeerAcceptor::AcceptSome(int strangers, absl::Time now) {
  std::vector<Accepted> all;
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Accepted accepted = Accept(listener_.socket);
    if (!accepted.socket.valid()) {
      if (!accepted.exhausted) break;
      // Stops watching for a pause: otherwise the poller would report the
      // waiting connections again and again.
      if (const auto lasts = shortages_.Note("descriptors", now)) {
        NEREUS_LOG(Warning) << "cannot accept connections for now: no file "
                               "descriptors are left"
                            << LastsText(*lasts);
      }
      poller_.Watch(listener_.socket.get(), 0, this);
      resume_at_ = now + kPause;
      break;
    }
    if (strangers >= strangers_max_) {
      NEREUS_LOG(Debug) << "closed the connection from " << accepted.address
                        << ": " << strangers << " handshakes are under way";
      continue;
    }
    ++strangers;
    all.push_back(std::move(accepted));
  }
  return all;
}

void PeerAcceptor::Resume(absl::Time now) {
  if (now < resume_at_) return;
  resume_at_ = absl::InfiniteFuture();
  poller_.Watch(listener_.socket.get(), EPOLLIN, this);
}

void PeerAcceptor::Close() {
  if (!listener_.socket.valid()) return;
  poller_.Forget(listener_.socket.get());
  listener_.socket.Close();
  resume_at_ = absl::InfiniteFuture();
}

}  // namespace nereus
