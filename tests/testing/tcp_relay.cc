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

constexpr char kLoopback[] = "127.0.0.1";

sockaddr_in AddressOf(const char* host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  NEREUS_CHECK(inet_pton(AF_INET, host, &address.sin_addr) == 1) << host;
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

// Accepted and outgoing socket of a connection.
struct Connection {
  int inner = -1;
  int outer = -1;
  bool is_swallowed = false;
};

// Passes on bytes that have arrived, at most 64 KiB, or drops them. Returns
// false if one of the sockets has ended.
bool Move(int from, int to, bool drops) {
  char data[65536];
  const ssize_t bytes = recv(from, data, sizeof(data), 0);
  return bytes > 0 && (drops || WriteAll(to, data, bytes));
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
  int wake[2] = {-1, -1};             // Pipe that Wake writes to.
  std::atomic<bool> cut{false};       // True: the thread must call CutAll.
  std::atomic<bool> swallows{false};  // True: the thread must swallow one.
  std::atomic<bool> closed{false};    // True: new connections are closed.
  std::atomic<bool> stopping{false};
  // Connections, the oldest first. Used by the thread only.
  std::vector<Connection> connections;
  // Sockets of swallowed connections whose other end has closed them. They stay
  // open, so that their peers see nothing.
  std::vector<int> ended;
  std::thread thread;
};

void TcpRelay::Impl::CutAll() {
  for (const Connection& connection : connections) {
    close(connection.inner);
    close(connection.outer);
  }
  connections.clear();
}

void TcpRelay::Impl::Accept() {
  const int inner = accept(listener, nullptr, nullptr);
  if (inner < 0) return;
  const int outer = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = AddressOf(kLoopback, target_port);
  if (closed || connect(outer, reinterpret_cast<const sockaddr*>(&address),
                        sizeof(address)) != 0) {
    close(inner);
    close(outer);
    return;
  }
  connections.push_back({inner, outer});
}

void TcpRelay::Impl::Run() {
  while (!stopping) {
    std::vector<pollfd> fds = {{wake[0], POLLIN, 0}, {listener, POLLIN, 0}};
    // A socket below 0 is not polled.
    for (const Connection& connection : connections) {
      fds.push_back({connection.inner, POLLIN, 0});
      fds.push_back({connection.outer, POLLIN, 0});
    }
    poll(fds.data(), fds.size(), -1);
    char byte;
    if (fds[0].revents != 0) NEREUS_CHECK(read(wake[0], &byte, 1) == 1);
    if (cut.exchange(false)) {
      CutAll();
      continue;
    }
    if (swallows.exchange(false)) connections.at(0).is_swallowed = true;
    std::vector<Connection> alive;
    for (size_t i = 0; i < connections.size(); ++i) {
      Connection connection = connections[i];
      const bool drops = connection.is_swallowed;
      bool goes_on = true;
      for (int end = 0; end < 2 && goes_on; ++end) {
        int& from = end == 0 ? connection.inner : connection.outer;
        const int to = end == 0 ? connection.outer : connection.inner;
        if (fds[2 + 2 * i + end].revents == 0 || Move(from, to, drops)) {
          continue;
        }
        goes_on = drops;
        if (drops) ended.push_back(std::exchange(from, -1));
      }
      if (goes_on) {
        alive.push_back(connection);
      } else {
        close(connection.inner);
        close(connection.outer);
      }
    }
    connections.swap(alive);
    if (fds[1].revents != 0) Accept();
  }
  CutAll();
  for (const int fd : ended) close(fd);
}

TcpRelay::TcpRelay(int target_port) : TcpRelay(kLoopback, 0, target_port) {}

TcpRelay::TcpRelay(const char* host, int port, int target_port)
    : impl_(std::make_unique<Impl>()) {
  impl_->target_port = target_port;
  impl_->listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = AddressOf(host, port);
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

void TcpRelay::SwallowOldest() {
  impl_->swallows = true;
  impl_->Wake();
}

void TcpRelay::Close() {
  impl_->closed = true;
  Break();
}

}  // namespace nereus
