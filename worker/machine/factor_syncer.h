#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/machine/peer_syncer.h"

namespace nereus {

// Scheme kFactor, Poseidon's sufficient-factor broadcasting: each worker sends
// its K x M and K x N factors to every other one, and each makes the mean
// gradient with one product over the stacked factors of all, in rank order, so
// that all hold the same bits.
//
// A round's memory: both stacks, in which the factors of the worker at position
// p are rows [p * K, p * K + K). Two times workers * K * (M + N) floats.
class FactorSyncer final : public PeerSyncer {
 public:
  FactorSyncer(JobPtr job, int layer, int rank, LayerMemory memory);

 private:
  absl::Status Keep(Buffer gradient) override;
  void KeepFactors(FactorBuffers factors, Outbox& out) override;
  Buffer kept() const override { return {}; }
  void Release() override { own_ = FactorBuffers(); }

  std::vector<int64_t> MemoryElements(int contributors) const override;
  int64_t MemoryFrames(int contributors) const override {
    return contributors * frames_per_worker_;
  }
  void Begin(Round& round) override;
  void PlaceOwn(Outbox& out) override;
  void SendOwn(Outbox& out) override;
  absl::StatusOr<Landing> PlaceFrame(const FrameHeader& header) const override;
  void TakeFrame(const FrameHeader& header, Outbox& out) override;
  absl::StatusOr<Place> FindPlace(const FrameHeader& header,
                                  const Round& round) const override;
  void SendMemory(const Round& round, PeerId to, Outbox& out) const override;
  Buffer TakeMean(const Round& round, Outbox& out) override;
  std::vector<std::string> MissingPeers(const Round& round) const override;
  FrameKind memory_kind() const override { return FrameKind::kFactors; }
  bool Carries(FrameKind kind) const override {
    return kind == FrameKind::kFactors;
  }

  // One worker's matrix: its elements, and its place in a stack.
  int64_t MatrixElements(uint8_t matrix) const;
  Buffer Rows(const Round& round, int position, uint8_t matrix) const;
  // Calls `each` for the frames that carry the factors of one worker.
  template <typename Each>
  void CutFactors(const Round& round, int position, Each each) const;

  int64_t frames_per_worker_ = 0;
  FactorBuffers own_;  // Pushed for next_round().
  Buffer product_;  // The mean gradient, where the caller gave no room for it.
};

}  // namespace nereus
