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
// payload, or that the transport drops the frame, or that it keeps the frame
// until later.
struct Landing {
  // kScratch: the payload goes to memory of the transport. This memory is valid
  // until the driver has carried out the actions of OnFrame. kPlace: the
  // payload goes to `place`; bf16 and fp16 values go to scratch, and the driver
  // decodes them into `place`. If the connection ends before the frame is
  // complete, part of `place` may have been overwritten. kDiscard: the frame is
  // a repetition, or its epoch is over; the transport skips the payload and
  // does not call OnFrame. kWait: the frame is too early; the transport keeps
  // it and all later frames of the same peer, and announces it again later.
  enum class Kind { kScratch, kPlace, kDiscard, kWait };
  Kind kind = Kind::kScratch;  // Kind of memory.
  Buffer place;                // kPlace: the memory; else empty.

  // Scratch, Discard and Wait return a landing of the kind with this name. At
  // returns a landing of the kind kPlace, in `place`.
  static Landing Scratch() { return {}; }
  static Landing Discard() { return {Kind::kDiscard, Buffer()}; }
  static Landing Wait() { return {Kind::kWait, Buffer()}; }
  static Landing At(Buffer place) { return {Kind::kPlace, std::move(place)}; }
};

// Receiver of the events of a transport. The thread that polls the transport
// makes all calls, one at a time. OnHeader announces each frame, and OnFrame
// delivers it, with no other frame of the same peer in between. If OnHeader
// returns kDiscard, kWait or an error, OnFrame does not follow.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;

  // Announces a frame, before a byte of its payload is read. An error refuses
  // the frame and ends the connection.
  virtual absl::StatusOr<Landing> OnHeader(PeerId from,
                                           const FrameHeader& header) = 0;
  // Delivers a frame. Its payload has landed and has the length that the header
  // states. If the frame came over TCP, its checksum is verified.
  virtual void OnFrame(PeerId from, const Frame& frame) = 0;
  // Reports that a connection to `peer` is open.
  virtual void OnConnected(PeerId peer) = 0;
  // Reports that a connection to `peer` has ended, or that none could be made:
  // in the second case OnConnected was not called before. `reason` is OK if the
  // peer closed the connection.
  virtual void OnDisconnected(PeerId peer, const absl::Status& reason) = 0;
};

// State machine of the protocol: takes an event, appends actions to an Outbox.
// WorkerMachine and ServerMachine implement it.
//
// Pure: no thread, clock, socket, file or unseeded randomness, so that the
// simulator and tests can drive it. Not thread-safe: the driver makes one call
// at a time, and carries out the actions of each call, in order, before it
// makes the next call. If a driver carried out actions later, they would read
// scratch that the transport has used for another payload.
class Machine {
 public:
  virtual ~Machine() = default;

  // Checks that a frame of the current epoch fits the machine's state: sender,
  // layer, chunk, round, offset and length. Changes nothing, so the transport
  // may announce the same frame again.
  //
  // Errors: kInvalidArgument, the frame is wrong: the caller must end the
  // connection.
  virtual absl::StatusOr<Landing> OnHeader(PeerId from,
                                           const FrameHeader& header) const = 0;

  // Takes a frame for which OnHeader has just returned kScratch or kPlace. A
  // payload in a place is float32. A payload in scratch has the format
  // header.wire: if this is not float32, the machine must not read the values,
  // but passes them on as an Addend.
  virtual void OnFrame(PeerId from, const Frame& frame, Outbox& out) = 0;

  // Freezes the machine, because the epoch is about to end. From now until
  // OnEpoch the machine makes no progress that changes Report: the coordinator
  // builds the next epoch from the reports of all members.
  virtual void Freeze() = 0;
  // Returns the progress of this machine.
  virtual MachineReport Report() const = 0;

  // Enters the next epoch, which `job` describes. The model and the number of
  // shards do not change. Open rounds begin again in the new epoch.
  virtual void OnEpoch(JobPtr job, Outbox& out) = 0;

  // Saves the last round of the job: all workers have left after `round`. Each
  // shard saves its chunks as of `round`, and worker `sender` sends the
  // worker-owned layers.
  virtual void SaveLast(int64_t round, int32_t sender, Outbox& out) = 0;

  // Takes `crc`, the result of an earlier action of this machine in this epoch.
  // With the last missing layer of the round, returns the checksums of all
  // layers, or the whole sample; otherwise nothing.
  virtual std::optional<ReplicaChecksums> OnChecksum(
      const ChecksumValues& /*checked*/, uint32_t /*crc*/) {
    return std::nullopt;
  }
};

}  // namespace nereus
