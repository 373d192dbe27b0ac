#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/base/socket.h"
#include "common/protocol/machine.h"
#include "common/protocol/peer.h"
#include "common/tensor/buffer.h"
#include "common/transport/memory/frame_ring.h"
#include "common/transport/memory/shared_memory.h"
#include "common/transport/socket/frame_reader.h"
#include "common/transport/socket/frame_writer.h"
#include "common/transport/transport.h"

namespace nereus {

// What two processes on one host exchange frames through; their socket says
// that there is something to see, and when the other one has gone.
struct SharedFrames {
  static constexpr size_t kBytes = 2 * FrameRing::kBytes;

  SharedFrames(SharedMemory new_memory, bool is_creator)
      : memory(std::move(new_memory)),
        writer(memory.data() + (is_creator ? 0 : FrameRing::kBytes)),
        reader(memory.data() + (is_creator ? FrameRing::kBytes : 0)) {}

  SharedMemory memory;
  FrameRingWriter writer;
  FrameRingReader reader;
  bool blocked = false;  // Frames wait for room.
  // The socket has come to its end, or is lost: why.
  std::optional<absl::Status> ended;
};

// One TCP connection of a SocketTransport, and what is under way on it. A
// struct: the transport, which has all of them, is who acts.
struct SocketConnection {
  enum class State {
    kDialling,  // It is not there yet.
    kStranger,  // It has come in, and who it is has not.
    kGreeting,  // This side has said who it is, and waits for the answer.
    kOpen,
    kEnding,  // A last frame goes out; nothing is heard any more.
    kGone,    // Closed; what refers to it has not looked yet.
  };

  SocketConnection(Descriptor new_socket, std::string new_address,
                   State new_state)
      : socket(std::move(new_socket)),
        address(std::move(new_address)),
        state(new_state),
        writer([this](const FrameHeader& header) { CountSent(header); }) {}

  void CountSent(const FrameHeader& header) const {
    if (counters == nullptr || header.kind == FrameKind::kHello ||
        header.kind == FrameKind::kRefusal) {
      return;
    }
    counters->sent += kFrameHeaderBytes + header.payload_bytes;
  }
  void CountReceived() const {
    counters->received += kFrameHeaderBytes + reader.header().payload_bytes;
  }

  Descriptor socket;
  const std::string address;  // Of the peer, for messages.
  State state;
  // Whom this side dials, or who has said that it is; from kOpen on certain.
  std::optional<PeerId> peer;
  std::shared_ptr<TrafficCounters> counters;  // From kOpen on.

  FrameReader reader;
  FrameWriter writer;
  std::unique_ptr<SharedFrames> offered;  // kGreeting: nobody has taken it.
  std::unique_ptr<SharedFrames> shared;   // From kOpen on, or never.
  uint32_t watched = 0;       // What epoll is asked for; 0: nothing.
  bool preamble_read = true;  // Strangers send one.
  bool counted = false;       // Among the transport's strangers.
  bool dirty = false;         // In the transport's list of those with frames.
  bool again = false;         // In that of those with more to read.
  bool shut = false;          // Its side is closed for writing.

  // At which it is given up, and why.
  absl::Time deadline = absl::InfiniteFuture();
  std::string deadline_reason;

  // The frame that comes in.
  Landing landing;
  Buffer scratch;            // If it needs some.
  int64_t announced_at = 0;  // Of the transport's deliveries.
  bool landed = false;       // It has a place, and is not complete.
  bool complete = false;     // All of it is there, and had to wait.
  bool waits = false;        // It has been told to.
};

}  // namespace nereus
