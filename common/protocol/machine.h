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

// Decision of a machine about an announced frame: the memory that receives its
// payload, or that the frame is dropped.
struct Landing {
  // kScratch: memory of the transport, valid while OnFrame runs. kPlace:
  // `place`, if the values travel as float32 (encoded values go through a
  // scratch). If the frame never arrives whole, part of the place may be
  // overwritten. kDiscard: no memory. The frame is a repetition, or its epoch
  // is over; the payload is skipped and OnFrame is not called. kWait: the frame
  // is too early. The transport keeps it, and all later frames of the same
  // peer, and announces it again later.
  enum class Kind { kScratch, kPlace, kDiscard, kWait };
  Kind kind = Kind::kScratch;  // Kind of memory.
  Buffer place;                // kPlace: the memory; else empty.

  // Shorthands for the four kinds.
  static Landing Scratch() { return {}; }
  static Landing Discard() { return {Kind::kDiscard, Buffer()}; }
  static Landing Wait() { return {Kind::kWait, Buffer()}; }
  static Landing At(Buffer place) { return {Kind::kPlace, std::move(place)}; }
};

// Receiver of the events of a transport. The thread that polls the transport
// makes all calls, one at a time. Each frame is announced by OnHeader and then
// delivered by OnFrame, with nothing from the same peer in between.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;

  // Announces a frame, before a byte of its payload is read. An error refuses
  // the frame and ends the connection.
  virtual absl::StatusOr<Landing> OnHeader(PeerId from,
                                           const FrameHeader& header) = 0;
  // Delivers a frame. Its payload has landed; length and checksum are verified.
  virtual void OnFrame(PeerId from, const Frame& frame) = 0;
  // Reports that frames to `peer` can be sent.
  virtual void OnConnected(PeerId peer) = 0;
  // Reports the end of a connection; OK: the peer closed it. May come without
  // OnConnected before it, when no connection could be made.
  virtual void OnDisconnected(PeerId peer, const absl::Status& reason) = 0;
};

// State machine of the protocol: takes an event, appends actions to an Outbox.
// WorkerMachine and ServerMachine are the two kinds.
//
// Pure: no thread, clock, socket, file or unseeded randomness, so that the
// simulator and tests can drive it. Not thread-safe: one owner makes one call
// at a time, and carries out the actions of each call, in order, before the
// next call. A payload in scratch is valid until then. An owner that carries
// out actions late would hand OnFrame's scratch to arithmetic after the
// transport has reused it.
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
  // float32; a payload in scratch has the bytes of header.wire, and may only be
  // read as an Addend unless that is float32.
  virtual void OnFrame(PeerId from, const Frame& frame, Outbox& out) = 0;

  // Freezes the machine, because the epoch is about to end. From now until
  // OnEpoch the content of Report must stay true: the coordinator builds the
  // next epoch from the reports of all members, and progress after a report
  // would contradict it.
  virtual void Freeze() = 0;
  // Returns the progress of this machine.
  virtual MachineReport Report() const = 0;

  // Enters the job's next epoch, with the same model and number of shards. Open
  // rounds begin again in it.
  virtual void OnEpoch(JobPtr job, Outbox& out) = 0;

  // Saves the last round: all workers have left after `round`. Each shard saves
  // its chunks as of it, and worker `sender` sends the worker-owned layers.
  virtual void SaveLast(int64_t round, int32_t sender, Outbox& out) = 0;

  // Takes the result of an earlier ChecksumValues action. Returns the checksums
  // of all layers once the last one is known.
  virtual std::optional<ReplicaChecksums> OnChecksum(int /*layer*/,
                                                     int64_t /*round*/,
                                                     uint32_t /*crc*/) {
    return std::nullopt;
  }
};

}  // namespace nereus
