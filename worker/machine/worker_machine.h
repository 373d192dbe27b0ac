#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/probe_answers.h"
#include "common/protocol/verdicts.h"
#include "worker/machine/sample_schedule.h"
#include "worker/machine/send_plan.h"
#include "worker/machine/syncer.h"

namespace nereus {

// A worker's side of the protocol: it passes each event to the parts that it
// concerns. Each layer has a Syncer, which carries out the layer's rounds. The
// SendPlan says which layers are sent, and when. The machine itself keeps the
// state of the whole step: verdicts, the choice of blocks, checksums of the
// replica.
//
// Between Freeze and OnEpoch no worker-owned layer makes progress: what Report
// has returned must stay true until the next epoch begins. Pure: the worker's
// MachineDriver calls it, and so does the simulated cluster. One thread at a
// time.
class WorkerMachine final : public Machine {
 public:
  // `rank`: rank of a worker in job->workers. `memory`: by layer of the model.
  WorkerMachine(JobPtr job, int rank, std::vector<LayerMemory> memory);

  // Not copyable or movable, because the parts refer to each other.
  WorkerMachine(const WorkerMachine&) = delete;
  WorkerMachine& operator=(const WorkerMachine&) = delete;

  // Sets the fusion threshold, in bytes. It holds until an epoch begins whose
  // job has another JobOptions::fusion_bytes than the job before.
  void SetFusion(int64_t bytes) { plan_.SetFusion(bytes); }

  // Sends `target`, a server or a worker of this host, `frames` frames of
  // `payload_bytes` each, to measure the connection. ProbeAnswered follows when
  // the target has answered the last frame, unless the epoch ends before that.
  void Probe(PeerId target, int64_t train, int frames, int64_t payload_bytes,
             Outbox& out);

  // Fetches the first values. A LayerDone per layer follows, for the round
  // before this worker's first one.
  void Start(Outbox& out);

  // Begins step `step` for the caller. From the first call until a call returns
  // true, the machine may write the layers' memory, and the caller must not use
  // it. Returns false if the step must be begun again later: after the next
  // epoch has begun, if the machine is frozen or the plan ends before the step;
  // after the next LayerDone, if the machine is fetching values.
  bool BeginStep(int64_t step, Outbox& out);

  // Takes the caller's contribution to round `round` of `layer`; see Syncer.
  // `fit`: false if the gradient must not be used, because it has a NaN. With
  // NanPolicy::kSkip such a gradient makes all workers skip the step. `scale`:
  // factor by which the caller multiplied the loss; the machine has the
  // gradient divided by it, in place. REQUIRES: the model has `layer`, and the
  // buffers have its sizes.
  absl::Status OnPush(int layer, int64_t round, Buffer gradient, Outbox& out,
                      bool fit = true, float scale = 1.0f, Buffer mean = {});
  absl::Status OnPushFactors(int layer, int64_t round, FactorBuffers factors,
                             Outbox& out, bool fit = true, float scale = 1.0f);

  // Notes that the caller waits for the layer. If the layer is deferred, sends
  // all deferred layers.
  void OnHurry(int layer, Outbox& out);

  // Notes that the caller has done its last step, and that all pushed rounds
  // are done.
  void OnLeave(Outbox& out);

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const override;
  void OnFrame(PeerId from, const Frame& frame, Outbox& out) override;
  void Freeze() override { plan_.Freeze(); }
  MachineReport Report() const override;
  void OnEpoch(JobPtr job, Outbox& out) override;
  void SaveLast(int64_t round, int32_t sender, Outbox& out) override;
  std::optional<ReplicaChecksums> OnChecksum(const ChecksumValues& checked,
                                             uint32_t crc) override;

  // Notes that the worker's next heartbeat is due. The number of steps between
  // two heartbeats decides of which rounds the machine samples the replica.
  void OnHeartbeat() { schedule_.OnHeartbeat(begun_step_); }

  // Returns the syncer of a layer. In a sparse job, the block layer has the
  // index after the layers of the model.
  const Syncer& syncer(int layer) const { return *syncers_[layer]; }
  // Names the members that a pushed layer waits for, for messages. Empty if it
  // waits for nothing, or for this worker's own backward pass.
  std::string Missing(int layer) const;
  // The oldest round that waits for another member, without the time that it
  // has waited; nullopt if no round waits.
  std::optional<Stall> OldestWait() const;
  bool frozen() const { return plan_.is_frozen(); }

 private:
  // Carries out what the SendPlan says: sends layers, votes.
  // Called at the end of each event after which the SendPlan can have more to
  // say.
  void Proceed(Outbox& out);
  void SendLayers(const std::vector<int>& layers, Outbox& out);
  void SendVote(const SendPlan::Vote& vote, Outbox& out) const;
  // Replaces the syncer of a layer that has another route in the new plan.
  void Reroute(int layer, Outbox& out);
  // True if a gradient must not be used (`fit` is false), although the verdict
  // on its step is not to skip it: the verdict was given before this worker did
  // the step again. The worker then contributes zeros.
  bool IsBarred(int64_t round, bool fit) const;
  // Notes that the caller pushes a layer of `round`: if this is its first push
  // of the step, ends the step before.
  void OnPushOf(int64_t round, Outbox& out);
  // Contributes the norms of the blocks, from which the servers make the choice
  // for the next step.
  void PushNorms(Outbox& out);
  // True if the plan ends, and the last round of the plan is done and reported
  // for all layers.
  bool ready_to_switch() const;
  // Tells the coordinator, once in an epoch, that this worker is ready to
  // switch.
  void SayReadyToSwitch(Outbox& out);

  absl::StatusOr<Landing> OnProbeHeader(PeerId from,
                                        const FrameHeader& header) const;
  absl::StatusOr<Landing> OnVerdictHeader(PeerId from,
                                          const FrameHeader& header) const;
  void OnVerdict(const FrameHeader& header, Outbox& out);

  const int rank_;           // This worker's rank.
  JobPtr job_;               // The job in this epoch.
  int64_t begun_step_;       // The last step that the caller has begun.
  SampleSchedule schedule_;  // Decides of which rounds there are samples.
  Verdicts verdicts_;        // Verdicts that this worker knows.
  // Ledgers and syncers of all layers, with those of the block layer.
  std::vector<RoundLedger> ledgers_;
  std::vector<std::unique_ptr<Syncer>> syncers_;
  SendPlan plan_;               // Decides when each layer is sent.
  bool is_ready_sent_ = false;  // True if ReadyToSwitch was sent in this epoch.
  Buffer probe_payload_;        // Zeros, for Probe.
  ProbeAnswers probes_;         // Answers to probes of mates.
  // Checksums that are known so far: by round, then by layer. Of the replica,
  // and of its samples.
  using Checksums = std::map<int64_t, std::map<int, uint32_t>>;
  Checksums checksums_;
  Checksums samples_;

  // In a sparse job.
  Buffer choices_;      // Values of the block layer.
  BlockChoice choice_;  // Blocks that travel in the next round.
  Buffer norms_;        // Norms of the blocks, for the choice after that.
};

}  // namespace nereus
