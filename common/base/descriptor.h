#pragma once

#include <unistd.h>

#include <utility>

namespace nereus {

// Owner of the descriptor of a file, a socket, an epoll or an eventfd. Movable.
// Closes the descriptor when destroyed.
class Descriptor {
 public:
  Descriptor() = default;
  // Takes over `fd`: this object closes it.
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  // Swaps the descriptors: `other` then owns the former descriptor of this
  // object, and closes it when `other` is destroyed.
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { Close(); }

  // Returns the descriptor; -1 if there is none.
  int get() const { return fd_; }
  // True if there is a descriptor.
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor to the caller, which must close it.
  int Release() { return std::exchange(fd_, -1); }
  // Closes the descriptor, if there is one.
  void Close() {
    if (valid()) close(Release());
  }

 private:
  int fd_ = -1;  // See get().
};

}  // namespace nereus
