#pragma once

#include <memory>

namespace nereus {

// A port of 127.0.0.1 that passes every connection on to another port: a
// network that a test can cut. Thread-safe; has a thread of its own.
class TcpRelay {
 public:
  explicit TcpRelay(int target_port);
  ~TcpRelay();

  int port() const;

  // Cuts all connections. New ones may be made.
  void Break();

  // Cuts all connections, and refuses new ones.
  void Close();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
