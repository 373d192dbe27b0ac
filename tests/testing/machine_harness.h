#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/membership.h"

namespace nereus {

// Helpers for tests of a single machine. They make jobs of a few layers,
// deliver frames to the machine, and carry out its actions, in the place of a
// transport and a driver. They work in memory, handle one event at a time, and
// are deterministic.

// Returns a layer of `elements` values that has no factors.
LayerSpec VectorLayer(std::string name, int64_t elements);
// Returns a fully connected layer, m x n, that has factors of `rows` rows.
LayerSpec FactorLayer(std::string name, int64_t m, int64_t n, bool bias,
                      int64_t rows);

// Returns job 77 in its first epoch. Layers that support `scheme` go by it, all
// others by the servers.
JobPtr TestJob(int workers, int shards, std::vector<LayerSpec> layers,
               JobOptions options = {}, Scheme scheme = Scheme::kServer,
               WireType wire = WireType::kFloat32);

// Returns the job in the next epoch, after `edit` has changed it. Its first
// step is raised to that of its last worker. Ends the process if MakeJob
// refuses the changed job.

JobPtr EpochAfter(const Job& job, const std::function<void(Job&)>& edit = {});

// Returns a new buffer with these values.
Buffer FloatBuffer(const std::vector<float>& values);
// Returns the values of a buffer of float32.
std::vector<float> FloatsOf(const Buffer& buffer);

// Returns `count` integers from -500 to 508, so that their sums are exact. The
// first 1009 values differ from each other. Another `salt` gives other values.
std::vector<float> IntegerValues(int64_t count, int64_t salt);

// Returns the frames in which `sender` would send `values`, with checksums. The
// values are one part of a chunk; with kFactors, they are one matrix of a
// position.
std::vector<Frame> FramesOf(const Job& job, PeerId sender, FrameKind kind,
                            int layer, int64_t chunk, int64_t round,
                            const std::vector<float>& values, uint8_t part = 0);

// Returns a frame without a payload, of the kind kPull or kPullRound.
Frame PullFrame(const Job& job, PeerId sender, FrameKind kind, int layer,
                int64_t chunk, int64_t round);

// Actions of a machine in one event. Arithmetic is not among them, because
// Carry carries it out; nor are answers to probes.
struct Effects {
  // Frame that a SendFrame or BroadcastFrame sends.
  struct Sent {
    std::optional<PeerId> to;  // Receiver. Nothing: `workers` receive it.
    // Frame with its payload in the wire type. It holds a reference to its
    // payload, as a frame does that waits for a slow connection.
    Frame frame;
    std::vector<int32_t> workers = {};  // Ranks of several receivers.

    // True if `peer` receives the frame.
    bool IsFor(PeerId peer) const;
  };
  std::vector<Sent> sent;  // Frames in the order of sending.
  std::vector<LayerDone> done;
  std::vector<PartDone> parts;
  std::vector<SaveCheckpoint> saves;
  std::vector<LoadCheckpoint> loads;
  std::vector<ChecksumValues> checksums;  // Checks of whole layers.
  std::vector<ChecksumValues> samples;

  int heartbeats = 0;  // Number of SendHeartbeat.

  // Actions of a Member only.
  std::vector<MemberMessage> messages;
  std::vector<std::shared_ptr<const EpochStart>> followed;
  std::vector<absl::Status> ended;
};

// Carries the actions out in order, and clears `out`. Ends the process if a
// check finds a NaN or an infinity.
Effects Carry(Outbox& out);

// Outcome of Deliver.
struct Delivery {
  Landing::Kind landing = Landing::Kind::kScratch;  // Answer of OnHeader.
  Effects effects;  // Effects of OnFrame. Empty if it was not called.
};
// Delivers one frame to a machine as a transport does: calls OnHeader, puts the
// payload into its landing, calls OnFrame, and carries out the actions. Stops
// after OnHeader if the landing is kDiscard or kWait. A payload in scratch is
// valid until the actions are carried out. Deliver then fills it with NaN, so
// that a machine that still reads it fails its test. Errors: those of OnHeader.
absl::StatusOr<Delivery> Deliver(Machine& machine, PeerId from,
                                 const Frame& frame);

// Delivers frames that the machine must not refuse. Returns their effects of
// these kinds: sent, done, parts, saves and messages. Ends the process, with
// the reason, if the machine refuses a frame.
Effects DeliverAll(Machine& machine, PeerId from,
                   const std::vector<Frame>& frames);

// Returns the values of a chunk or matrix, put together from the frames of
// `kind` for `layer`, `chunk`, `part` and `round` in `sent`. The frames must
// have float32 payloads. Missing values are NaN.
std::vector<float> ValuesIn(const std::vector<Effects::Sent>& sent,
                            FrameKind kind, int layer, int64_t chunk,
                            int64_t round, int64_t elements, uint8_t part = 0);

// Returns the frames of `sent` that have `peer` as their only receiver.
std::vector<Effects::Sent> SentTo(const std::vector<Effects::Sent>& sent,
                                  PeerId peer);

}  // namespace nereus
