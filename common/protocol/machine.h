#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "common/protocol/frame.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/protocol/outbox.h"
#include "common/protocol/peer.h"

namespace nereus {

// Where the payload of an announced frame is to be received.
struct Landing {
  // kScratch: memory of the transport's that is valid while OnFrame runs.
  // kPlace: `place`, as long as the values are as float32; of a frame that
  // never becomes whole, part of it may be overwritten. kDiscard: nowhere, the
  // frame is a repetition or of an epoch that is over; OnFrame is not called.
  // kWait: the frame comes too early; the transport keeps it, and all that
  // follow from the same peer, and announces it again later.
  enum class Kind { kScratch, kPlace, kDiscard, kWait };
  Kind kind = Kind::kScratch;
  Buffer place;

  static Landing Scratch() { return {}; }
  static Landing Discard() { return {Kind::kDiscard, Buffer()}; }
  static Landing Wait() { return {Kind::kWait, Buffer()}; }
  static Landing At(Buffer place) { return {Kind::kPlace, std::move(place)}; }
};

// What a transport tells its owner. For each frame OnHeader, then OnFrame, with
// nothing from the same peer in between.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;

  // A frame announces itself. An error refuses it and ends the connection.
  virtual absl::StatusOr<Landing> OnHeader(PeerId from,
                                           const FrameHeader& header) = 0;
  // Its payload has landed, length and checksum as announced.
  virtual void OnFrame(PeerId from, const Frame& frame) = 0;
  virtual void OnConnected(PeerId peer) = 0;
  // OK: the peer closed it. May come without OnConnected before it.
  virtual void OnDisconnected(PeerId peer, const absl::Status& reason) = 0;
};

// A state machine of the protocol core: takes an event, appends actions.
//
// Pure: no threads, clocks, sockets, files or unseeded randomness. One owner
// calls it, one event at a time, and carries out the actions of each event in
// order before the next one. A payload in scratch is valid until then.
class Machine {
 public:
  virtual ~Machine() = default;

  // Checks a frame of this epoch against the state: sender, layer, chunk,
  // round, offset, length. Changes nothing. Errors: kInvalidArgument, the frame
  // is wrong: its connection must end.
  virtual absl::StatusOr<Landing> OnHeader(PeerId from,
                                           const FrameHeader& header) const = 0;

  // The payload of a frame that OnHeader has just accepted.
  virtual void OnFrame(PeerId from, const Frame& frame, Outbox& out) = 0;

  // The epoch is about to end: what the report says must stay true until
  // OnEpoch.
  virtual void Freeze() = 0;
  virtual MachineReport Report() const = 0;

  // The job's next epoch; same model and shards. What is under way is
  // done again in it.
  virtual void OnEpoch(JobPtr job, Outbox& out) = 0;

  // All workers have left after `round`, which is saved: each shard saves what
  // it has as of it, and worker `sender` sends what workers own.
  virtual void SaveLast(int64_t round, int32_t sender, Outbox& out) = 0;

  // The checksum that ChecksumValues asked for. Returns those of all layers
  // once they are known.
  virtual std::optional<ReplicaChecksums> OnChecksum(int /*layer*/,
                                                     int64_t /*round*/,
                                                     uint32_t /*crc*/) {
    return std::nullopt;
  }
};

}  // namespace nereus
