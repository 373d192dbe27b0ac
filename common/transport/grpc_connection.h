#ifndef NEREUS_COMMON_TRANSPORT_GRPC_CONNECTION_H_
#define NEREUS_COMMON_TRANSPORT_GRPC_CONNECTION_H_

#include <grpcpp/channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/protocol/peer.h"
#include "common/protocol/send_queue.h"
#include "common/transport/grpc_frames.h"
#include "common/transport/transport.h"

namespace nereus {

// The one method of the data port.
inline constexpr char kFramesMethod[] = "/nereus.v1.Data/Frames";

// One bidirectional stream of frames, seen from either end. Internal to the
// gRPC transport.
//
// Thread-safe. A connection keeps itself alive until gRPC is done with it. At
// most one message is being written, the rest wait in a SendQueue; at most
// `undelivered_max` messages are in the listener's hands, then reading stops
// until Consumed: the peer is held back by HTTP/2 flow control.
//
// All calls into gRPC are made by one thread at a time, whichever finds
// something to do, and without a lock: gRPC may drop payloads inside of them,
// whose owners may call back.
class GrpcConnection : public std::enable_shared_from_this<GrpcConnection> {
 public:
  using OutgoingPtr = std::unique_ptr<OutgoingFrame>;

  // Hears of connections on threads of gRPC, must not wait there, and is shared
  // by its owner and its connections.
  class Listener {
   public:
    virtual ~Listener() = default;

    // A message has come in; one at a time. Each must be answered, now or
    // later, by Consumed.
    virtual void OnMessage(const std::shared_ptr<GrpcConnection>& connection,
                           std::unique_ptr<grpc::ByteBuffer> message) = 0;

    // It is over, see reason(). The last call.
    virtual void OnClosed(
        const std::shared_ptr<GrpcConnection>& connection) = 0;
  };

  // Makes a stream over `channel`; Start opens it. `address` is for messages.
  // `count` counts it until it is destroyed, and its channel with it.
  static std::shared_ptr<GrpcConnection> ToPeer(
      std::shared_ptr<grpc::Channel> channel, std::string address,
      int undelivered_max, std::shared_ptr<Listener> listener,
      std::shared_ptr<UseCount> count);

  // Takes a stream that has come in. Owned by itself, like every connection;
  // gRPC wants the pointer.
  static std::shared_ptr<GrpcConnection> FromPeer(
      grpc::GenericCallbackServerContext* context, int undelivered_max,
      std::shared_ptr<Listener> listener, std::shared_ptr<UseCount> count,
      grpc::ServerGenericBidiReactor** reactor);

  virtual ~GrpcConnection();

  // Begins to read, and to write what was sent. Must be called, once; the
  // connection then lives until OnClosed at least.
  virtual void Start() = 0;

  // Who is at the other end, once the handshake has said so. Set once, in the
  // OnMessage that completes it.
  const std::optional<PeerId>& peer() const { return peer_; }
  void set_peer(PeerId peer) { peer_ = peer; }

  // True on the side that dialled.
  bool connecting() const { return connecting_; }

  // "ipv4:10.0.0.1:12345", or what was dialled.
  const std::string& address() const { return address_; }

  // Queues `frame`; drops it if the connection is ending.
  void Send(OutgoingPtr frame);

  // Queues `frames` at once; what is written and received from here on is added
  // to `traffic`, handshakes aside. Writes nothing yet, so that a lock may be
  // held: REQUIRES: called from OnMessage, after which writing begins.
  void Adopt(std::deque<OutgoingPtr> frames,
             std::shared_ptr<TrafficCounters> traffic);

  // The owner is done with one message.
  void Consumed();

  // Drops what waits, sends `last` if there is one, then ends the stream. What
  // still comes in is dropped. Only the first reason counts.
  //
  // The accepting side cannot end a stream but by Abort: `last` must be a frame
  // that makes the peer do so (kRefusal).
  void End(OutgoingPtr last, absl::Status reason);

  // Sends what waits, then `last` and the end.
  void EndWhenSent(OutgoingPtr last);

  // Ends the stream now. Only the first reason counts.
  void Abort(absl::Status reason);

  // The owner wants nothing more of it, not even the news of its end.
  void Disown() { disowned_ = true; }
  bool disowned() const { return disowned_; }

  // True if it was this side that told the peer why it ends.
  bool refused_here() const;

  // Why it ended: the reason given, else what gRPC said.
  absl::Status reason() const;

  // True once it is over because the other end does not know kFramesMethod.
  bool unimplemented() const;

  // The owner has accepted a frame of `bytes`, header included.
  void CountReceived(int64_t bytes);

 protected:
  GrpcConnection(std::string address, bool connecting, int undelivered_max,
                 std::shared_ptr<Listener> listener,
                 std::shared_ptr<UseCount> count);

  // Lets Pump begin.
  void Open();

  // What gRPC reports.
  void OnRead(bool ok);
  void OnWritten(bool ok);

  // `unimplemented`: see above.
  void OnOver(absl::Status status, bool unimplemented);

  // Does what there is to do; returns at once if another thread is at it, which
  // then looks again. Not to be called with a lock held.
  void Pump();

  // Calls into gRPC, made by Pump alone.
  virtual void StartReading(grpc::ByteBuffer* message) = 0;
  virtual void StartWriting(const grpc::ByteBuffer* message) = 0;
  // This side has nothing more to write. `open`: nor has the peer ended it.
  virtual void Finish(const absl::Status& reason, bool open) = 0;
  // The last call into gRPC; on the connecting side only.
  virtual void Release() = 0;
  virtual void Cancel() = 0;

  std::shared_ptr<GrpcConnection> self_;  // From Start until gRPC is done.

 private:
  enum class Step { kNone, kCancel, kWrite, kFinish, kRead, kRelease };

  // A step to take without the lock, and what it needs.
  struct Work {
    Step step = Step::kNone;
    std::vector<OutgoingPtr> frames;  // Of one message.
    std::shared_ptr<TrafficCounters> traffic;
    absl::Status reason;
    bool open = false;
    std::deque<OutgoingPtr> dropped;  // To be destroyed.
  };

  // Decides on the next step and marks it as taken. REQUIRES: mu_ is held.
  Work NextWork();
  void Take(Work work);
  // The frames of the next message. REQUIRES: mu_ is held, one waits.
  std::vector<OutgoingPtr> NextFrames();
  // REQUIRES: mu_ is held.
  void Enqueue(OutgoingPtr frame);

  // Constant, the peer from the end of the handshake on.
  std::optional<PeerId> peer_;
  const std::string address_;
  const bool connecting_;
  const int undelivered_max_;
  const std::shared_ptr<Listener> listener_;
  const std::shared_ptr<UseCount> count_;

  std::atomic<bool> disowned_{false};

  // Belong to the operation under way.
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;

  mutable std::mutex mu_;
  // Guarded by mu_.
  SendQueue<OutgoingPtr> queue_;
  OutgoingPtr last_;                  // Goes after all of queue_.
  std::deque<OutgoingPtr> unwanted_;  // To be destroyed without the lock.
  std::shared_ptr<TrafficCounters> traffic_;
  absl::Status reason_;         // Given by End or Abort.
  absl::Status grpc_status_;    // Set at the end.
  bool explained_ = false;      // reason_ was given.
  bool refused_here_ = false;   // With a last frame for the peer.
  bool unimplemented_ = false;  // So said gRPC at the end.
  bool open_ = false;           // Start has opened the stream.
  bool pumping_ = false;        // A thread is in Pump.
  bool pump_again_ = false;     // It must look again.
  bool reading_ = false;        // A read is under way.
  bool writing_ = false;        // A write is under way.
  bool read_ended_ = false;     // No more will come in.
  bool write_failed_ = false;   // No more can go out.
  bool ending_ = false;  // No new frames; end once there is nothing to send.
  bool cancel_wanted_ = false;  // By Abort.
  bool cancelled_ = false;
  bool finished_ = false;  // Finish was called.
  bool released_ = false;  // Release was called.
  int undelivered_ = 0;    // Messages in the listener's hands.
};

}  // namespace nereus

#endif  // NEREUS_COMMON_TRANSPORT_GRPC_CONNECTION_H_
