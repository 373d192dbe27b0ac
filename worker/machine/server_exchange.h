#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/machine/chunk_frames.h"
#include "worker/machine/exchange.h"
#include "worker/machine/local_half.h"
#include "worker/machine/result_assembly.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Scheme kServer: the gradient goes to the shards, chunk by chunk, and the
// result comes back. The result is the new parameters. Where the caller runs
// the optimizer, it is the mean gradient, which replaces the pushed gradient in
// its memory.
//
// Each chunk has a carrier among the workers of a host (LocalHalf). The carrier
// sends the shard the sum of its host, gets the result, and hands it on.
//
// Memory: that of LocalHalf, and, where several workers share a host and the
// caller runs the optimizer, a mean gradient.
class ServerExchange final : public Exchange {
 public:
  // All parameters: not owned; must outlive this.
  ServerExchange(const WorkerLayer& layer, const RoundLedger& ledger,
                 ResultAssembly& results);

  void Begin(Outbox&) override {}
  void Contribute(Outbox& out) override;
  void Gather(Outbox& out) override;
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  bool OnFrame(const Frame& frame, Outbox& out) override;
  void OnResult(const FrameHeader& header, Outbox& out) override;
  std::optional<RoundResult> Finish(Outbox& out) override;
  void OnEpoch(Outbox& out) override;
  std::string Missing() const override;

 private:
  absl::Span<const Chunk> chunks() const {
    return layer_.job->placement.layer_chunks(layer_.index);
  }
  bool Carries(const Chunk& chunk) const {
    return local_.Carries(ledger_.next_round(), chunk.index);
  }

  // The own contribution.

  // True if frame `index` of the chunk is part of the open round: the frames of
  // a sparse layer's blocks that stay behind are not.
  bool Travels(const Chunk& chunk, int64_t index) const;
  // Returns the header of that frame. REQUIRES: Travels.
  FrameHeader HeaderOf(FrameKind kind, const Chunk& chunk, int64_t index) const;
  // Returns this worker's values of that frame. REQUIRES: Travels.
  Buffer ValuesOf(const Chunk& chunk, int64_t index) const;
  // Sends the own part of a chunk to its shard or its carrier, or adds it to
  // the host's sum. `asks`: this contribution has asked for results.
  void ContributeChunk(const Chunk& chunk, bool asks, Outbox& out);

  // The host's sum.

  // Adds the part of worker `rank` to the sum, and sends the sum to the shard
  // when it is complete.
  void AddToSum(int rank, int64_t round, const Chunk& chunk, int64_t index,
                Addend addend, Outbox& out);

  // Results.

  // Expects the result of the open round in its place.
  void ExpectResult();
  // Asks the shards for results of the open round that may be lost, with the
  // first contribution of an epoch. Returns true if it asks.
  bool AskForClosed(Outbox& out);
  // Asks the shards for the chunks of the open round that this worker carries,
  // once.
  void PullCarried(Outbox& out);
  void Ask(PeerId to, int64_t chunk, Outbox& out) const;
  // Checks a frame from the carrier of a chunk.
  absl::Status CheckOutcome(const FrameHeader& header) const;
  // Checks the request of a mate, which waits for a chunk that this worker
  // carries.
  absl::StatusOr<Landing> OnPullHeader(const FrameHeader& header) const;

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // The layer's rounds; not owned.
  ResultAssembly& results_;    // Assembles the round's result; not owned.
  const ChunkFrames frames_;   // Frames of the layer.
  LocalHalf local_;            // Parts of the workers of this host.
  // Place of a round's result, and the round; a contribution sets them.
  Buffer result_;
  int64_t result_round_ = kInitialRound - 1;
  // The mean gradient, where several workers share a host: frames to mates may
  // refer to it after the pushed gradient is the caller's again.
  Buffer mean_;
  bool is_apart_ = false;                     // True if result_ is mean_.
  uint64_t asked_in_ = 0;                     // Epoch of AskForClosed; 0: none.
  int64_t pulled_round_ = kInitialRound - 1;  // Last round of PullCarried.
  int64_t wanted_round_ =
      kInitialRound - 1;  // Last round that a mate asked for.
};

}  // namespace nereus
