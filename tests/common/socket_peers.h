#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>

#include "common/base/crc32c.h"
#include "common/base/socket.h"
#include "common/transport/handshake.h"
#include "common/transport/socket/socket_transport.h"
#include "tests/common/transport_contract.h"

namespace nereus {

// Helpers for tests of SocketTransport: transport kinds, and peers that are no
// transports.

inline TransportKind KindOf(std::string name, TransportOptions options,
                            bool has_checksums) {
  return {std::move(name),
          [options](int port) {
            TransportOptions here = options;
            here.port = port;
            return SocketTransport::Start(here);
          },
          has_checksums};
}
inline TransportKind SocketKind(TransportOptions options = {}) {
  options.shared_memory = false;
  return KindOf("socket", options, /*has_checksums=*/true);
}
inline TransportKind SharedMemoryKind(TransportOptions options = {}) {
  return KindOf("shared_memory", options, /*has_checksums=*/false);
}

inline std::string FrameBytes(const Frame& frame) {
  std::string bytes(kFrameHeaderBytes, '\0');
  EncodeFrameHeader(frame.header, reinterpret_cast<uint8_t*>(bytes.data()));
  bytes.append(reinterpret_cast<const char*>(frame.payload.data()),
               static_cast<size_t>(frame.payload.bytes()));
  return bytes;
}

inline Frame Checked(Frame frame) {
  frame.header.payload_crc =
      Crc32c(frame.payload.data(), static_cast<size_t>(frame.payload.bytes()));
  return frame;
}

inline std::string PreambleTo(PeerId peer, uint64_t token) {
  const PreambleBytes bytes = EncodePreamble({peer, token});
  return std::string(bytes.begin(), bytes.end());
}

inline std::string HelloBytes(PeerId self, PeerId intended) {
  Hello hello = TestHello(self);
  hello.intended = intended;
  return FrameBytes(HelloFrame(hello));
}

// A raw TCP client of a transport's port.
class RawSocket {
 public:
  explicit RawSocket(const std::string& address)
      : socket_(*BeginConnect(Resolve(address, true)->front())) {
    pollfd wanted = {socket_.get(), POLLOUT, 0};
    poll(&wanted, 1, 10'000);
  }

  void Write(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t more = send(socket_.get(), bytes.data() + sent,
                                bytes.size() - sent, MSG_NOSIGNAL);
      if (more > 0) sent += static_cast<size_t>(more);
      if (more < 0 && errno != EAGAIN) return;
    }
  }

  // Returns all bytes that have come by now; empty once the peer has closed the
  // connection.
  bool Read(std::string& text) {
    char bytes[4096];
    while (true) {
      const ssize_t got = recv(socket_.get(), bytes, sizeof(bytes), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
      if (got < 0) return true;
      text.append(bytes, static_cast<size_t>(got));
    }
  }

  void HangUp() { socket_.Close(); }
  void Reset() {
    AbortOnClose(socket_);
    socket_.Close();
  }
  void HangUpWriting() { shutdown(socket_.get(), SHUT_WR); }

 private:
  Descriptor socket_;
};

}  // namespace nereus
