#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/verdicts.h"
#include "worker/machine/syncer.h"

namespace nereus {

// A worker's side of the protocol: one syncer per layer. Pure; client.cc drives
// it, and so does the simulated cluster.
//
// Between Freeze and OnEpoch no layer that workers own gets further, so that
// what the report says stays true until all agree on the next epoch.
class WorkerMachine final : public Machine {
 public:
  // `rank`: of a worker in job->workers. `memory`: by layer.
  WorkerMachine(JobPtr job, int rank, std::vector<LayerMemory> memory);

  // JobOptions::fusion_bytes as of now; until it is set, and in a new epoch
  // that says otherwise, the job's.
  void SetFusion(int64_t bytes) { fusion_bytes_ = bytes; }

  // Sends `frames` of `payload_bytes` each to a server. When the last one is
  // there, ProbeAnswered follows, if no epoch ends meanwhile.
  void Probe(int server, int64_t train, int frames, int64_t payload_bytes,
             Outbox& out);

  // Fetches the first values: a LayerDone per layer follows, for the round
  // before this worker's first one.
  void Start(Outbox& out);

  // The caller begins step `step`, and uses no values until it has: this worker
  // will take part in it. Unless the machine is frozen, or the plan ends before
  // it: then false, to be tried again in the next epoch. The same while values
  // come that a new plan needs: to be tried again when a layer is done.
  bool BeginStep(int64_t step, Outbox& out);

  // The caller's contribution to round `round` of `layer`, see Syncer. `fit`:
  // it may be used; with NanPolicy::kSkip, one that is not costs all workers
  // the step. `scale`: what the loss was multiplied by, and the gradient is
  // divided by, in place. REQUIRES: `layer` and the buffers' sizes are the
  // model's.
  absl::Status OnPush(int layer, int64_t round, Buffer gradient, Outbox& out,
                      bool fit = true, float scale = 1.0f);
  absl::Status OnPushFactors(int layer, int64_t round, FactorBuffers factors,
                             Outbox& out, bool fit = true, float scale = 1.0f);

  // The caller waits for this layer now. One that is held is sent. With
  // Overlap::kDecoupled layers are gathered in forward order once all are
  // pushed, a window ahead of what is done.
  void OnWait(int layer, Outbox& out);

  // The caller has done its last step, and what it pushed is done.
  void OnLeave(Outbox& out);

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const override;
  void OnFrame(PeerId from, const Frame& frame, Outbox& out) override;
  void Freeze() override { frozen_ = true; }
  MachineReport Report() const override;
  void OnEpoch(JobPtr job, Outbox& out) override;
  void SaveLast(int64_t round, int32_t sender, Outbox& out) override;
  std::optional<ReplicaChecksums> OnChecksum(int layer, int64_t round,
                                             uint32_t crc) override;

  // Of the model's layers, and last, in a sparse job, the block layer.
  const Syncer& syncer(int layer) const { return *syncers_[layer]; }
  // What a layer that the caller has pushed waits for, for messages; empty: for
  // nothing, or this worker's own backward.
  std::string Missing(int layer) const;
  // The oldest round that waits for another member, without the time; nothing:
  // none does.
  std::optional<Stall> OldestWait() const;
  bool frozen() const { return frozen_; }

 private:
  // Whether all layers are done with the plan's last round; says so, once.
  bool drained() const;
  void SaySettled(Outbox& out);
  // Goes on with this layer by another route; where servers run the optimizer,
  // from the next step on, with what the shards have of it.
  void Reroute(int layer, Outbox& out);
  // Whether a gradient must not be used although its step is not skipped, which
  // was settled before this worker did it again: it contributes zeros.
  bool IsBarred(int64_t round, bool fit) const;
  // A layer has been pushed.
  void CountPush(int layer, int64_t round, bool fit, Outbox& out);
  // Whether all of the step's layers are pushed.
  bool pushed_all() const { return pushed_.layers == job_->model().size(); }
  // Whether what is held waits for more, or has to.
  bool holds() const;
  // Sends what is held, as backward has produced it.
  void SendHeld(Outbox& out);
  // In a sparse job: whether nobody knows yet what of the step travels; reads
  // it when it is there; and contributes to the choice for the next step.
  bool awaits_choice() const;
  void TakeChoice(Outbox& out);
  void PushNorms(Outbox& out);
  // What was put off because the machine was frozen, or awaited the choice.
  void GoOn(Outbox& out);
  // Gathers this layer, or does so in the next epoch.
  void GatherNow(int layer, Outbox& out);
  // Gathers what is next.
  void GatherMore(Outbox& out);
  // This worker's vote on the step that it has pushed, to all servers, if it is
  // due.
  void Vote(Outbox& out) const;
  absl::StatusOr<Landing> OnProbeHeader(PeerId from,
                                        const FrameHeader& header) const;
  absl::StatusOr<Landing> OnVerdictHeader(PeerId from,
                                          const FrameHeader& header) const;

  const int rank_;
  JobPtr job_;
  std::vector<std::unique_ptr<Syncer>> syncers_;  // By layer.
  int64_t begun_step_;
  bool frozen_ = false;
  bool drained_said_ = false;  // In this epoch.

  // The last step of which something was pushed.
  struct Pushed {
    int64_t step = kInitialRound;
    size_t layers = 0;
    bool fit = true;
  };
  Pushed pushed_;

  // Of that step: layers that are pushed, and not yet sent, and their bytes.
  std::vector<int> held_;
  int64_t held_bytes_ = 0;
  int64_t fusion_bytes_;

  // Of that step, in forward order: layers before the first are done, and those
  // before the second are gathered; see OnWait.
  size_t done_before_ = 0;
  size_t gathered_before_ = 0;
  std::vector<int> waited_for_;  // While frozen, or awaiting the choice.
  Verdicts verdicts_;

  Buffer probe_payload_;  // Zeros.

  // Checksums of the replica by round, and by layer as far as they are known.
  std::map<int64_t, std::map<int, uint32_t>> checksums_;

  // In a sparse job.
  Buffer choices_;      // The block layer's values.
  BlockChoice choice_;  // Of the step after its last round.
  Buffer norms_;        // What this worker says to the one after that.
};

}  // namespace nereus
