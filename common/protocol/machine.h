#pragma once

#include <cstdint>
#include <optional>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/protocol/outbox.h"
#include "common/protocol/peer.h"

namespace nereus {

// Decision of a machine about an announced frame: which memory receives its
// payload, or that the frame is dropped or waits.
struct Landing {
  // kScratch: the payload goes to memory of the transport, which is valid until
  // the actions of OnFrame have been carried out. kPlace: the payload goes to
  // `place`; 16-bit values go through scratch, and the driver decodes them into
  // `place`. If the frame does not arrive completely, part of `place` may be
  // overwritten. kDiscard: the frame is a repetition, or its epoch is over. The
  // payload is skipped and OnFrame is not called. kWait: the frame is too
  // early. The transport keeps the frame and all later frames of the same peer,
  // and announces the frame again later.
  enum class Kind { kScratch, kPlace, kDiscard, kWait };
  Kind kind = Kind::kScratch;  // Kind of memory.
  Buffer place;                // kPlace: the memory; else empty.

  // Return a landing of each kind.
  static Landing Scratch() { return {}; }
  static Landing Discard() { return {Kind::kDiscard, Buffer()}; }
  static Landing Wait() { return {Kind::kWait, Buffer()}; }
  static Landing At(Buffer place) { return {Kind::kPlace, std::move(place)}; }
};

// Receiver of the events of a transport. The thread that polls the transport
// makes all calls, one at a time. OnHeader announces each frame, and OnFrame
// delivers it, with no other frame of the same peer in between. A landing of
// kDiscard or kWait ends the delivery.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;

  // Announces a frame, before a byte of its payload is read. An error refuses
  // the frame and ends the connection.
  virtual absl::StatusOr<Landing> OnHeader(PeerId from,
                                           const FrameHeader& header) = 0;
  // Delivers a frame. Its payload has landed; length and checksum are verified.
  virtual void OnFrame(PeerId from, const Frame& frame) = 0;
  // Reports that a connection to `peer` is open.
  virtual void OnConnected(PeerId peer) = 0;
  // Reports the end of a connection. `reason` is OK if the peer closed it. The
  // report may come without OnConnected before it, if no connection could be
  // made.
  virtual void OnDisconnected(PeerId peer, const absl::Status& reason) = 0;
};

// State machine of the protocol: takes an event, appends actions to an Outbox.
// WorkerMachine and ServerMachine implement it.
//
// Pure: no thread, clock, socket, file or unseeded randomness, so that the
// simulator and tests can drive it. Not thread-safe: the driver makes one call
// at a time, and carries out the actions of each call, in order, before the
// next call. Until then a payload in scratch is valid. A driver that carries
// out actions later would compute with scratch that the transport has used
// again.
class Machine {
 public:
  virtual ~Machine() = default;

  // Checks a frame of the current epoch against the state: sender, layer,
  // chunk, round, offset and length. Changes nothing, so the same frame may be
  // announced again.
  //
  // Errors: kInvalidArgument, the frame is wrong: end its connection.
  virtual absl::StatusOr<Landing> OnHeader(PeerId from,
                                           const FrameHeader& header) const = 0;

  // Takes a frame that OnHeader has just accepted. A payload in a place is
  // float32. A payload in scratch has the format header.wire: unless that is
  // float32, pass it on as an Addend and do not read it.
  virtual void OnFrame(PeerId from, const Frame& frame, Outbox& out) = 0;

  // Freezes the machine, because the epoch is about to end. From now until
  // OnEpoch the machine makes no progress that changes Report: the coordinator
  // builds the next epoch from the reports of all members.
  virtual void Freeze() = 0;
  // Returns the progress of this machine.
  virtual MachineReport Report() const = 0;

  // Enters the job's next epoch, with the same model and number of shards. Open
  // rounds begin again in the new epoch.
  virtual void OnEpoch(JobPtr job, Outbox& out) = 0;

  // Saves the last round of the job: all workers have left after `round`. Each
  // shard saves its chunks as of `round`, and worker `sender` sends the
  // worker-owned layers.
  virtual void SaveLast(int64_t round, int32_t sender, Outbox& out) = 0;

  // Takes the result of an earlier ChecksumValues action. Returns the checksums
  // of all layers once all of them are known.
  virtual std::optional<ReplicaChecksums> OnChecksum(int /*layer*/,
                                                     int64_t /*round*/,
                                                     uint32_t /*crc*/) {
    return std::nullopt;
  }
};

}  // namespace nereus
