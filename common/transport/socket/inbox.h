#pragma once

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "common/protocol/frame.h"
#include "common/protocol/peer.h"

namespace nereus {

// Keeps frames that other threads have sent until the polling thread takes
// them. Has no limit of its own. Thread-safe.
class Inbox {
 public:
  using Frames = std::vector<std::pair<PeerId, Frame>>;

  // Keeps `frame` for Take. After Close, drops the frame and returns false.
  bool Push(PeerId to, const Frame& frame) {
    std::lock_guard<std::mutex> lock(mu_);
    if (closed_) return false;
    frames_.emplace_back(to, frame);
    used_ = true;
    return true;
  }

  // Returns all frames, in the order of Push.
  Frames Take() {
    std::lock_guard<std::mutex> lock(mu_);
    used_ = false;
    return std::exchange(frames_, {});
  }

  // True if frames wait for Take. Takes no lock.
  bool used() const { return used_; }

  // Makes Push drop frames from now on.
  void Close() {
    std::lock_guard<std::mutex> lock(mu_);
    closed_ = true;
  }

 private:
  // True if frames_ is not empty. Set under mu_.
  std::atomic<bool> used_{false};
  std::mutex mu_;
  bool closed_ = false;  // Close was called. Guarded by mu_.
  Frames frames_;        // In the order of Push. Guarded by mu_.
};

}  // namespace nereus
