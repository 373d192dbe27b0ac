#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/machine/exchange.h"
#include "worker/machine/local_half.h"
#include "worker/machine/result_assembly.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Scheme kServer: the gradient goes to the shards, chunk by chunk, and the
// result comes back. The result is the new parameters or, where the caller runs
// the optimizer, the mean gradient, which replaces the pushed gradient in the
// caller's memory.
//
// Each chunk has a carrier among the workers of a host (LocalHalf). The carrier
// sends the shard the sum of its host, gets the result, and hands the result on
// to its mates.
//
// Memory: that of LocalHalf. Where several workers share a host and the caller
// runs the optimizer, also one mean gradient.
class ServerExchange final : public Exchange {
 public:
  // `layer`, `ledger`, `results`: not owned; must outlive this.
  ServerExchange(const WorkerLayer& layer, const RoundLedger& ledger,
                 ResultAssembly& results);

  void Begin(Outbox&) override {}
  void Contribute(Outbox& out) override;
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  void OnFrame(const Frame& frame, Outbox& out) override;
  void OnResult(const FrameHeader& header, Outbox& out) override;
  std::optional<RoundResult> Finish(Outbox& out) override;
  void OnEpoch(Outbox&) override { local_.OnEpoch(); }
  std::string Missing() const override;

 private:
  absl::Span<const Chunk> chunks() const {
    return layer_.job->placement.layer_chunks(layer_.index);
  }
  // True if this worker carries the chunk on its host, in the open round.
  bool Carries(const Chunk& chunk) const {
    return local_.Carries(ledger_.next_round(), chunk.index);
  }

  // The contribution of this worker.

  // True if frame `index` of the chunk is sent in the open round. In a sparse
  // layer, a block that does not travel is not sent. The frame without values
  // is sent only if no block of the chunk travels.
  bool Travels(const Chunk& chunk, int64_t index) const;
  // Returns the header of frame `index` of the chunk. REQUIRES: Travels.
  FrameHeader HeaderOf(FrameKind kind, const Chunk& chunk, int64_t index) const;
  // Returns this worker's values of frame `index` of the chunk. REQUIRES:
  // Travels.
  Buffer ValuesOf(const Chunk& chunk, int64_t index) const;
  // Sends this worker's part of a chunk to the chunk's shard or carrier, or
  // adds it to the host's sum. `asks`: true if AskForClosed has asked for
  // results.
  void ContributeChunk(const Chunk& chunk, bool asks, Outbox& out);

  // The host's sum.

  // Adds the part of worker `rank` to the sum, and sends the sum to the shard
  // when it is complete.
  void AddToSum(int rank, int64_t round, const Chunk& chunk, int64_t index,
                Addend addend, Outbox& out);

  // Results.

  // Expects the result of the open round in its place.
  void ExpectResult();
  // With the first contribution of an epoch, asks the shards for results of the
  // open round that may have been lost. Returns true if it has asked.
  bool AskForClosed(Outbox& out);
  // Checks that a frame of kind kOutcome comes from the carrier of its chunk.
  absl::Status CheckOutcome(const FrameHeader& header) const;

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // The layer's rounds; not owned.
  ResultAssembly& results_;    // Assembles the round's result; not owned.
  const ChunkFrames frames_;   // Frames of the layer.
  LocalHalf local_;            // Parts of the workers of this host.
  // Memory where the result of round result_round_ lands. ExpectResult sets
  // both.
  Buffer result_;
  int64_t result_round_ = kInitialRound - 1;
  // Memory for the mean gradient, where several workers share a host: frames to
  // mates may refer to the mean after the pushed gradient is the caller's
  // again.
  Buffer mean_;
  bool is_apart_ = false;  // True if result_ is mean_.
  uint64_t asked_in_ = 0;  // Epoch of AskForClosed; 0: none.
};

}  // namespace nereus
