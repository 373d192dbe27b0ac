#include "common/transport/socket/dialler.h"

namespace nereus {

absl::StatusOr<Dialler::Dialled> Dialler::Dial(const std::string& address) {
  auto found = found_.find(address);
  if (found == found_.end()) {
    // A numeric address needs no name server, and no other thread.
    auto numeric = Resolve(address, /*numeric_only=*/true);
    if (!numeric.ok()) {
      resolver_.Ask(address);
      return Dialled();
    }
    found = found_.emplace(address, *std::move(numeric)).first;
  }
  // Removes the address, whether the attempt succeeds or not. When a name has
  // no address left, the next Dial asks again, since the addresses may have
  // changed.
  std::vector<SocketAddress>& addresses = found->second;
  const SocketAddress next = addresses.front();
  addresses.erase(addresses.begin());
  Dialled dialled;
  dialled.has_more_addresses = !addresses.empty();
  if (addresses.empty()) found_.erase(found);
  auto socket = BeginConnect(next);
  if (!socket.ok()) return socket.status();
  dialled.socket = *std::move(socket);
  return dialled;
}

std::vector<Dialler::LookedUp> Dialler::Take() {
  std::vector<LookedUp> answers;
  for (Resolver::Answer& answer : resolver_.Take()) {
    answers.push_back({answer.address, answer.found.status()});
    if (answer.found.ok()) found_[answer.address] = *std::move(answer.found);
  }
  return answers;
}

}  // namespace nereus
