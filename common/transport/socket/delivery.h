#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/machine.h"
#include "common/protocol/peer.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Calls the handler of a transport, and keeps the scratches in which payloads
// wait for the handler.
//
// A frame is announced to the handler before its payload arrives, and delivered
// after it. In between, other calls of the handler may change what it wants to
// do with the frame. So each call of the handler, except OnHeader, changes
// version(). If version() has changed since Announce, the channel must announce
// the frame again before it delivers it.
//
// Not thread-safe. Outside of Poll there is no handler: then frames are
// discarded and other events are dropped.
class Delivery {
 public:
  // Passes all events to `handler` until End. Changes version(), because the
  // handler's state may have changed since the last call.
  void Begin(FrameHandler& handler);
  // Ends the calls of the handler.
  void End() {
    handler_ = nullptr;
    delivered_ = false;
  }

  bool has_handler() const { return handler_ != nullptr; }

  // Number that changes whenever the handler's state may have changed.
  int64_t version() const { return version_; }

  // True if the handler has got a frame, or was told of a link, since Begin.
  // False after End.
  bool delivered() const { return delivered_; }

  // Asks the handler where the payload of a frame goes. Without a handler,
  // discards the frame. Errors: kInvalidArgument, the frame must end its
  // connection.
  absl::StatusOr<Landing> Announce(PeerId from, const FrameHeader& header);

  // Hands a complete frame to the handler. REQUIRES: has_handler().
  void Deliver(PeerId from, const Frame& frame);
  // Tells the handler, if there is one, that a link has opened, or has ended.
  void Connected(PeerId peer);
  void Disconnected(PeerId peer, const absl::Status& reason);

  // Returns a scratch with room for the largest payload. Reuses memory if
  // possible.
  Buffer TakeScratch();
  // Keeps `scratch` for the next TakeScratch, if it has room for the largest
  // payload.
  void GiveBack(Buffer scratch);

 private:
  // Changes version() and sets delivered(): the handler is about to be called.
  void NoteCall();

  FrameHandler* handler_ = nullptr;  // Null outside of Poll.
  int64_t version_ = 0;              // See version().
  bool delivered_ = false;           // See delivered().
  std::vector<Buffer> scratches_;    // Scratches that are not in use.
};

}  // namespace nereus
