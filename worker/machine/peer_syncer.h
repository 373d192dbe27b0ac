#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/machine/syncer.h"

namespace nereus {

// A layer whose rounds go between the workers, past the shards. Each worker
// gathers in its memory what a round comes to, the same bits on all, and runs
// the update there (OptimizerPlace::kServer), or leaves it to the caller
// (kWorker). How the round is gathered is the scheme's.
//
// A peer may be one round ahead, no more: it needs this worker's contribution
// to a round to finish it. So there are two memories, and round t uses memory
// t % 2. For the same reason the memory of the last finished round stays as it
// was until every worker has finished that round; where a new epoch finds one
// that has not, and maybe lacks the contribution of a worker that is gone, it
// gets the whole memory from one that has.
class PeerSyncer : public Syncer {
 public:
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const final;
  void OnFrame(const FrameHeader& header, Outbox& out) final;
  std::string Missing() const final;

 protected:
  // What this worker knows of one round.
  struct Round {
    int64_t round = 0;
    int contributors = 0;
    std::vector<Buffer> memory;  // float32; by scheme.
    std::vector<bool> arrived;   // By frame of the memory.
    int64_t missing = 0;         // Count of false in arrived.
    bool sent = false;           // This worker's contribution, in this epoch.
    // Sparse, of the last round that was sent from here: by frame, whether it
    // travelled. Where none did, the last one, which has no values, so that
    // nobody is done before all have contributed.
    std::vector<bool> chosen;
  };

  PeerSyncer(JobPtr job, int layer, int rank, LayerMemory memory);

  // In the constructor of the last subclass.
  void OpenFirstRounds();

  // The scheme's part.

  // The lengths, in values, of the memory that a round of so many contributors
  // has.
  virtual std::vector<int64_t> MemoryElements(int contributors) const = 0;
  // How many frames that memory has.
  virtual int64_t MemoryFrames(int contributors) const = 0;
  // A round of this epoch begins: nothing of it is there but what is empty.
  virtual void Begin(Round& round) = 0;
  // This worker's contribution to the open round, again where an epoch is new.
  virtual void PlaceOwn(Outbox& out) = 0;
  virtual void SendOwn(Outbox& out) = 0;
  // What was put off until this worker gathers.
  virtual void GatherOwn(Outbox&) {}
  // A frame of the open round or the one after it, but for those that the
  // source sends.
  virtual absl::StatusOr<Landing> PlaceFrame(
      const FrameHeader& header) const = 0;
  virtual void TakeFrame(const FrameHeader& header, Outbox& out) = 0;
  // The frame's place in the memory of a round of that many contributors, and
  // its number there.
  struct Place {
    int64_t index = 0;
    Buffer values;
  };
  virtual absl::StatusOr<Place> FindPlace(const FrameHeader& header,
                                          const Round& round) const = 0;
  // The whole memory, in frames that FindPlace finds there again.
  virtual void SendMemory(const Round& round, PeerId to, Outbox& out) const = 0;
  // The mean gradient of a round whose memory is whole, for the optimizer or
  // the caller; empty: it is in the place of the gradient.
  virtual Buffer TakeMean(const Round& round, Outbox& out) = 0;
  // Who is to send what is missing of the open round.
  virtual std::vector<std::string> MissingPeers(const Round& round) const = 0;
  // The kind of the frames of SendMemory, and whether a kind is one of those
  // that the scheme's rounds are made of.
  virtual FrameKind memory_kind() const = 0;
  virtual bool Carries(FrameKind kind) const = 0;

  // For the scheme.

  Round& RoundAt(int64_t round) { return rounds_[round % 2]; }
  const Round& RoundAt(int64_t round) const { return rounds_[round % 2]; }
  // Whether the open round comes whole from a source.
  bool recovers() const { return source_.has_value(); }
  void Mark(Round& round, int64_t index) {
    round.arrived[index] = true;
    --round.missing;
  }
  absl::Status Refuse(const FrameHeader& header, absl::string_view why) const;
  void FinishIfComplete(Outbox& out);
  // Sparse: counts in what of the round does not travel.
  void LeaveOut(Round& round);

 private:
  void Contribute(Outbox& out) final;
  void BeginGather(Outbox& out) final;
  void EnterEpoch(Outbox& out) final;
  void Settle(Outbox& out) final {
    if (!fetching()) FinishIfComplete(out);
  }
  Buffer state() const final;

  // Empties `round` for a later one, whose contributors are the epoch's.
  void Open(Round& round, int64_t number);
  // Makes room for a round of so many; what the memory holds is lost.
  void Reserve(Round& round, int contributors) const;
  // Takes the memory of done_round() out of the way of later rounds.
  void KeepFinished();
  void Update(const Round& round, const Buffer& mean, Outbox& out);
  void Recover(const FinishedRound& finished, Outbox& out);
  absl::StatusOr<Landing> OnPullRoundHeader(const FrameHeader& header) const;
  absl::StatusOr<Landing> OnRoundHeader(const FrameHeader& header) const;
  // Whether this worker is to keep `round` for others.
  bool Holds(int64_t round) const;

  std::array<Round, 2> rounds_;
  Buffer state_;  // Of the optimizer, if it runs here.

  // Of this epoch.
  std::optional<PeerId> source_;  // Sends the memory of next_round().
  std::vector<bool> served_;      // By position: was sent finished_.

  // Of done_round() when this epoch began, for those who lack it.
  Round finished_;
};

}  // namespace nereus
