#pragma once

#include <memory>

namespace nereus {

// Relay for tests that cut a network. It listens at a port of a loopback
// address and passes the bytes of each connection on to a port of 127.0.0.1,
// and back, on a thread of its own. Thread-safe.
class TcpRelay {
 public:
  // Listens at a free port. Connects to 127.0.0.1:`target_port` for each
  // connection.
  explicit TcpRelay(int target_port);
  // Listens at `port` of `host`, such as 127.0.0.2.
  TcpRelay(const char* host, int port, int target_port);
  ~TcpRelay();

  // Port at which the relay listens.
  int port() const;

  // Lets the relay's thread cut all connections, soon after this call. New
  // connections work.
  void Break();

  // From now on drops what either end of the oldest connection sends, also the
  // end of its stream. New connections work.
  void SwallowOldest();

  // Cuts all connections like Break. From now on the relay closes each new
  // connection at once.
  void Close();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
