#include "tests/testing/tcp_relay.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/logging.h"

namespace nereus {
namespace {

sockaddr_in LoopbackAddress(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool WriteAll(int fd, const char* data, ssize_t bytes) {
  while (bytes > 0) {
    const ssize_t written =
        send(fd, data, static_cast<size_t>(bytes), MSG_NOSIGNAL);
    if (written <= 0) return false;
    data += written;
    bytes -= written;
  }
  return true;
}

// Passes on bytes that have arrived, at most 64 KiB. Returns false if one of
// the connections has ended.
bool Move(int from, int to) {
  char data[65536];
  const ssize_t bytes = recv(from, data, sizeof(data), 0);
  return bytes > 0 && WriteAll(to, data, bytes);
}

}  // namespace

struct TcpRelay::Impl {
  // Relays until `stopping`. Runs on the thread.
  void Run();
  // Accepts a connection and connects it to the target.
  void Accept();
  // Closes all connections.
  void CutAll();
  // Ends the poll of the thread, so that it reads the flags below.
  void Wake() { NEREUS_CHECK(write(wake[1], "", 1) == 1); }

  int target_port = 0;
  int port = 0;
  int listener = -1;
  int wake[2] = {-1, -1};           // Pipe that Wake writes to.
  std::atomic<bool> cut{false};     // True: the thread must call CutAll.
  std::atomic<bool> closed{false};  // True: new connections are closed.
  std::atomic<bool> stopping{false};
  // Accepted and outgoing socket of each connection. Used by the thread only.
  std::vector<std::pair<int, int>> pairs;
  std::thread thread;
};

void TcpRelay::Impl::CutAll() {
  for (const auto& [inner, outer] : pairs) {
    close(inner);
    close(outer);
  }
  pairs.clear();
}

void TcpRelay::Impl::Accept() {
  const int inner = accept(listener, nullptr, nullptr);
  if (inner < 0) return;
  const int outer = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = LoopbackAddress(target_port);
  if (closed || connect(outer, reinterpret_cast<const sockaddr*>(&address),
                        sizeof(address)) != 0) {
    close(inner);
    close(outer);
    return;
  }
  pairs.emplace_back(inner, outer);
}

void TcpRelay::Impl::Run() {
  while (!stopping) {
    std::vector<pollfd> fds = {{wake[0], POLLIN, 0}, {listener, POLLIN, 0}};
    for (const auto& [inner, outer] : pairs) {
      fds.push_back({inner, POLLIN, 0});
      fds.push_back({outer, POLLIN, 0});
    }
    poll(fds.data(), fds.size(), -1);
    char byte;
    if (fds[0].revents != 0) NEREUS_CHECK(read(wake[0], &byte, 1) == 1);
    if (cut.exchange(false)) {
      CutAll();
      continue;
    }
    std::vector<std::pair<int, int>> alive;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto [inner, outer] = pairs[i];
      if ((fds[2 + 2 * i].revents == 0 || Move(inner, outer)) &&
          (fds[3 + 2 * i].revents == 0 || Move(outer, inner))) {
        alive.push_back(pairs[i]);
      } else {
        close(inner);
        close(outer);
      }
    }
    pairs.swap(alive);
    if (fds[1].revents != 0) Accept();
  }
  CutAll();
}

TcpRelay::TcpRelay(int target_port) : impl_(std::make_unique<Impl>()) {
  impl_->target_port = target_port;
  impl_->listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = LoopbackAddress(0);
  socklen_t length = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  NEREUS_CHECK(bind(impl_->listener, raw, length) == 0);
  NEREUS_CHECK(listen(impl_->listener, 16) == 0);
  NEREUS_CHECK(getsockname(impl_->listener, raw, &length) == 0);
  impl_->port = ntohs(address.sin_port);
  NEREUS_CHECK(pipe(impl_->wake) == 0);
  impl_->thread = std::thread([this] { impl_->Run(); });
}

TcpRelay::~TcpRelay() {
  impl_->stopping = true;
  impl_->Wake();
  impl_->thread.join();
  for (const int fd : {impl_->listener, impl_->wake[0], impl_->wake[1]}) {
    close(fd);
  }
}

int TcpRelay::port() const { return impl_->port; }

void TcpRelay::Break() {
  impl_->cut = true;
  impl_->Wake();
}

void TcpRelay::Close() {
  impl_->closed = true;
  Break();
}

}  // namespace nereus
