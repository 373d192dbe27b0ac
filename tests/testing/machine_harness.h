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

// Jobs of a few layers, and a driver and transport in one for the tests of a
// single machine: deterministic, in memory, one event at a time.

// A layer of `elements` values that always goes through the servers.
LayerSpec VectorLayer(std::string name, int64_t elements);
// A fully connected layer, m x n, for `rows` rows a step.
LayerSpec FactorLayer(std::string name, int64_t m, int64_t n, bool bias,
                      int64_t rows);

// Job 77 in epoch 5. Fully connected layers go by `scheme`, all others through
// the servers.
JobPtr TestJob(int workers, int shards, std::vector<LayerSpec> layers,
               JobOptions options = {}, Scheme scheme = Scheme::kServer,
               WireType wire = WireType::kFloat32);

// The epoch after `job`, with what `edit` changes. Ends the process if there is
// no such job.
JobPtr EpochAfter(const Job& job, const std::function<void(Job&)>& edit = {});

Buffer FloatBuffer(const std::vector<float>& values);
std::vector<float> FloatsOf(const Buffer& buffer);

// `count` values that differ from each other and by `salt`, small integers all,
// so that their sums are exact.
std::vector<float> IntegerValues(int64_t count, int64_t salt);

// The frames that carry `values` of one part of a chunk (kFactors: of one
// matrix of a position), as `sender` would send them, checksums included.
std::vector<Frame> FramesOf(const Job& job, PeerId sender, FrameKind kind,
                            int layer, int64_t chunk, int64_t round,
                            const std::vector<float>& values, uint8_t part = 0);

// A frame without a payload: kPull, kPullRound.
Frame PullFrame(const Job& job, PeerId sender, FrameKind kind, int layer,
                int64_t chunk, int64_t round);

// Actions of a machine in one event. The arithmetic among them is done.
struct Effects {
  struct Sent {
    std::optional<PeerId> to;  // Receiver; nothing: the workers `workers`.
    // Frame as it travels. It holds its payload like a slow connection does.
    Frame frame;
    std::vector<int32_t> workers = {};  // Ranks of several receivers.

    // True if `peer` gets the frame.
    bool IsFor(PeerId peer) const;
  };
  std::vector<Sent> sent;
  std::vector<LayerDone> done;
  std::vector<PartDone> parts;
  std::vector<SaveCheckpoint> saves;
  std::vector<LoadCheckpoint> loads;
  std::vector<ChecksumValues> checksums;

  // Actions of a Member only.
  std::vector<MemberMessage> messages;
  std::vector<std::shared_ptr<const EpochStart>> followed;
  std::vector<absl::Status> ended;
};

// Carries the actions out, in order, and clears `out`.
Effects Carry(Outbox& out);

// Delivers one frame to a machine like a transport: OnHeader, payload to its
// landing, OnFrame, actions. Fills a scratch with NaN once it need not be valid
// any more, so that a test sees a machine that goes on reading it.
struct Delivery {
  Landing::Kind landing = Landing::Kind::kScratch;
  Effects effects;
};
absl::StatusOr<Delivery> Deliver(Machine& machine, PeerId from,
                                 const Frame& frame);

// Delivers frames that must all be accepted, and returns all their effects.
// Ends the process, with the refusal, if one is not.
Effects DeliverAll(Machine& machine, PeerId from,
                   const std::vector<Frame>& frames);

// Returns the values of a chunk or matrix, put together from the frames of
// `kind` for `layer`, `chunk`, `part` and `round` in `sent`. Missing values are
// NaN.
std::vector<float> ValuesIn(const std::vector<Effects::Sent>& sent,
                            FrameKind kind, int layer, int64_t chunk,
                            int64_t round, int64_t elements, uint8_t part = 0);

// Returns the frames of `sent` that go to `peer` alone.
std::vector<Effects::Sent> SentTo(const std::vector<Effects::Sent>& sent,
                                  PeerId peer);

}  // namespace nereus
