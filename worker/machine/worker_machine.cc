// Dispatch of a worker's events. The life of a step: BeginStep; OnPush and
// OnPushed for each layer; Proceed, with which most events end; OnFrame, which
// completes rounds. After that come Missing and OldestWait, the
// headers of frames, Report, and OnEpoch.

#include "worker/machine/worker_machine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/compute/blocks.h"
#include "worker/machine/float_bytes.h"

namespace nereus {
namespace {

// Number of rounds with an incomplete sample that are kept. The layers of a
// worker are at most two rounds apart.
constexpr size_t kSampledRoundsMax = 4;

int64_t FirstStepOf(const Job& job, int rank) {
  const int position = job.PositionOf(rank);
  NEREUS_CHECK(position >= 0) << "worker " << rank;
  return job.workers[position].first_step;
}

}  // namespace

WorkerMachine::WorkerMachine(JobPtr job, int rank,
                             std::vector<LayerMemory> memory)
    : rank_(rank),
      job_(std::move(job)),
      begun_step_(FirstStepOf(*job_, rank) - 1),
      schedule_(static_cast<int>(job_->model().size()), begun_step_),
      plan_(job_, ledgers_) {
  NEREUS_CHECK(memory.size() == job_->model().size())
      << memory.size() << " memories, " << job_->model().size() << " layers";
  if (job_->pool.layer >= 0) {
    const Buffer& model = memory.front().parameters;
    choices_ = Buffer::AllocateLike(model, FloatBytes(job_->block_count()));
    if (choices_.data() != nullptr) {
      std::fill_n(choices_.floats(), job_->block_count(), kFirstChoice);
    }
    memory.push_back({choices_, Buffer()});
  }
  verdicts_.Add(job_->history.verdicts);
  for (size_t layer = 0; layer < memory.size(); ++layer) {
    ledgers_.emplace_back(job_, static_cast<int>(layer), rank, verdicts_);
  }
  for (size_t layer = 0; layer < memory.size(); ++layer) {
    syncers_.push_back(std::make_unique<Syncer>(job_, static_cast<int>(layer),
                                                rank, std::move(memory[layer]),
                                                &ledgers_[layer], &schedule_));
  }
}

void WorkerMachine::Start(Outbox& out) {
  for (auto& syncer : syncers_) syncer->Start(out);
}

void WorkerMachine::Probe(PeerId target, int64_t train, int frames,
                          int64_t payload_bytes, Outbox& out) {
  if (probe_payload_.bytes() == 0) {
    probe_payload_ = Buffer::AllocateZeroed(kProbeMemoryBytes);
  }
  FrameHeader header =
      MakeHeader(*job_, PeerId::Worker(rank_), FrameKind::kProbe, /*layer=*/0,
                 /*chunk=*/0, train);
  header.wire = WireType::kFloat32;
  header.payload_bytes = static_cast<uint32_t>(payload_bytes);
  for (int frame = 0; frame < frames; ++frame) {
    header.part = frame + 1 < frames ? kMoreFollow : kLastOfTrain;
    out.Add(SendFrame{target,
                      {header, probe_payload_.Slice(
                                   frame % kProbeMemoryFrames * payload_bytes,
                                   payload_bytes)}});
  }
}

bool WorkerMachine::BeginStep(int64_t step, Outbox& out) {
  if (frozen() || (job_->switches() && step > job_->switch_round)) {
    return false;
  }
  // From now on a syncer may fetch its layer. Before the caller asks for this
  // step, the caller may still read the values.
  for (const auto& syncer : syncers_) syncer->BeginStep(out);
  for (size_t layer = 0; layer < job_->model().size(); ++layer) {
    if (syncers_[layer]->fetching()) return false;
  }
  begun_step_ = std::max(begun_step_, step);
  return true;
}

absl::Status WorkerMachine::OnPush(int layer, int64_t round, Buffer gradient,
                                   Outbox& out, bool fit, float scale,
                                   Buffer mean) {
  OnPushOf(round, out);
  if (IsBarred(round, fit)) {
    const Buffer zeros = Buffer::AllocateZeroed(gradient.bytes());
    if (job_->options.optimizer_place == OptimizerPlace::kWorker) {
      out.Add(CopyValues{gradient, zeros});  // The mean will land there.
    } else {
      gradient = zeros;
    }
  }
  if (scale != 1.0f) out.Add(ScaleValues{gradient, 1.0f / scale});
  NEREUS_TRY(
      syncers_[layer]->Push(round, std::move(gradient), std::move(mean), out));
  plan_.OnPush(layer, round, fit);
  Proceed(out);
  return absl::OkStatus();
}

absl::Status WorkerMachine::OnPushFactors(int layer, int64_t round,
                                          FactorBuffers factors, Outbox& out,
                                          bool fit, float scale) {
  OnPushOf(round, out);
  if (IsBarred(round, fit)) {
    for (Buffer* values : {&factors.output_gradient, &factors.input}) {
      *values = Buffer::AllocateZeroed(values->bytes());
    }
  }
  factors.scale = 1.0f / scale;
  NEREUS_TRY(syncers_[layer]->PushFactors(round, std::move(factors), out));
  plan_.OnPush(layer, round, fit);
  Proceed(out);
  return absl::OkStatus();
}

bool WorkerMachine::IsBarred(int64_t round, bool fit) const {
  return !fit && verdicts_.Skipped(round) == false;
}

// When the caller pushes the first layer of a new step, layers of the last step
// may be open, because the caller has not waited for them. These go first.
void WorkerMachine::OnPushOf(int64_t round, Outbox& out) {
  begun_step_ = std::max(begun_step_, round);
  if (plan_.step() == round) return;
  plan_.EndStep();
  Proceed(out);
}

void WorkerMachine::OnHurry(int layer, Outbox& out) {
  plan_.OnHurry(layer);
  Proceed(out);
}

void WorkerMachine::OnLeave(Outbox& out) {
  // Frames that are sent while the machine is frozen are sent again in the next
  // epoch.
  for (const auto& syncer : syncers_) syncer->Leave(out);
}

void WorkerMachine::Proceed(Outbox& out) {
  SendLayers(plan_.TakeSends(), out);
  if (const auto vote = plan_.TakeVote()) SendVote(*vote, out);
  SayReadyToSwitch(out);
}

void WorkerMachine::SendLayers(const std::vector<int>& layers, Outbox& out) {
  if (layers.empty()) return;
  if (job_->pool.layer >= 0 && norms_.bytes() == 0) {
    norms_ = Buffer::AllocateLike(choices_, choices_.bytes());
  }
  for (const int layer : layers) syncers_[layer]->Send(out, choice_, norms_);
  if (norms_.bytes() > 0 && plan_.has_pushed_all()) PushNorms(out);
}

void WorkerMachine::PushNorms(Outbox& out) {
  // The block layer goes to its shard like any other layer. The shard chooses
  // blocks by the sum of the workers' norms.
  Syncer& blocks = *syncers_[job_->pool.layer];
  const absl::Status status =
      blocks.Push(plan_.step(), std::exchange(norms_, Buffer()), {}, out);
  NEREUS_CHECK(status.ok()) << status;
  blocks.Send(out);
}

// Sends the vote to every server, because each server counts the votes by
// itself.
void WorkerMachine::SendVote(const SendPlan::Vote& vote, Outbox& out) const {
  if (!job_->votes() || verdicts_.Skipped(vote.step).has_value()) return;
  FrameHeader header =
      MakeHeader(*job_, PeerId::Worker(rank_), FrameKind::kVote, /*layer=*/0,
                 /*chunk=*/0, vote.step);
  header.part = vote.fit ? kGood : kSkipped;
  std::set<int32_t> servers;
  for (const ShardServers& each : job_->shard_servers) {
    servers.insert(each.primary);
  }
  for (const int32_t server : servers) {
    out.Add(SendFrame{PeerId::Shard(server), {header, {}}});
  }
}

std::string WorkerMachine::Missing(int layer) const {
  const Syncer& syncer = *syncers_[layer];
  if (!ledgers_[layer].is_unsent()) return syncer.Missing();
  if (!plan_.awaits_choice()) return "";
  const std::string missing = syncers_[job_->pool.layer]->Missing();
  return absl::StrCat("which blocks travel, from ",
                      missing.empty() ? "the servers" : missing);
}

// A round that waits for this worker's own backward does not count as a wait.
std::optional<Stall> WorkerMachine::OldestWait() const {
  std::optional<Stall> oldest;
  for (int layer = 0; layer < static_cast<int>(job_->model().size()); ++layer) {
    const Syncer& syncer = *syncers_[layer];
    const int64_t round = syncer.done_round() + 1;
    std::string missing = Missing(layer);
    const bool is_own = ledgers_[layer].is_unsent() && missing.empty();
    const bool waits = ledgers_[layer].is_open() && !is_own;
    if (!waits || (oldest.has_value() && oldest->round <= round)) continue;
    oldest = Stall{layer, round, std::move(missing), absl::ZeroDuration()};
  }
  return oldest;
}

absl::StatusOr<Landing> WorkerMachine::OnVerdictHeader(
    PeerId from, const FrameHeader& header) const {
  if (!job_->votes() ||
      from != PeerId::Shard(job_->shard_servers.front().primary) ||
      header.layer != 0 || header.chunk != 0 || header.offset != 0 ||
      header.payload_bytes != 0 || header.part > kSkipped || header.round < 0 ||
      header.round > begun_step_) {
    return RefuseFrame(header,
                       "the server of shard 0 gives the verdicts, on "
                       "steps up to ",
                       begun_step_);
  }
  // A frozen machine takes no verdict: its report must stay true.
  const bool known = verdicts_.Skipped(header.round).has_value();
  return frozen() || known ? Landing::Discard() : Landing::Scratch();
}

absl::StatusOr<Landing> WorkerMachine::OnProbeHeader(
    PeerId from, const FrameHeader& header) const {
  const PeerId self = PeerId::Worker(rank_);
  return header.part == kTrainAnswer
             ? PlaceProbeAnswer(*job_, self, from, header)
             : probes_.OnHeader(*job_, self, from, header);
}

absl::StatusOr<Landing> WorkerMachine::OnHeader(
    PeerId from, const FrameHeader& header) const {
  NEREUS_TRY(CheckFrame(*job_, from, header));
  if (header.kind == FrameKind::kVerdict) return OnVerdictHeader(from, header);
  if (header.kind == FrameKind::kProbe) return OnProbeHeader(from, header);
  // Kinds of frames that workers send to workers.
  const bool between_workers =
      header.kind == FrameKind::kFactors || header.kind == FrameKind::kSum ||
      header.kind == FrameKind::kMean || header.kind == FrameKind::kPullRound ||
      header.kind == FrameKind::kFinished || header.kind == FrameKind::kPull ||
      header.kind == FrameKind::kLocal || header.kind == FrameKind::kOutcome;
  const bool for_worker = header.kind == FrameKind::kResult || between_workers;
  if (!for_worker || (between_workers && from.role != Role::kWorker)) {
    return RefuseFrame(
        header,
        "workers take results and verdicts of servers, and other kinds of "
        "frames of workers");
  }
  Landing landing = NEREUS_TRY(syncers_[header.layer]->OnHeader(header));
  // A frozen machine makes no progress with worker-owned layers. The other
  // workers send these frames again in the next epoch.
  if (frozen() && from.role == Role::kWorker) return Landing::Discard();
  return landing;
}

void WorkerMachine::OnFrame(PeerId from, const Frame& frame, Outbox& out) {
  if (frame.header.kind == FrameKind::kProbe) {
    if (frame.header.part == kTrainAnswer) {
      return out.Add(ProbeAnswered{frame.header.round});
    }
    return probes_.OnFrame(*job_, PeerId::Worker(rank_), from, frame.header,
                           out);
  }
  if (frame.header.kind == FrameKind::kVerdict) {
    return OnVerdict(frame.header, out);
  }
  const auto layer = static_cast<int>(frame.header.layer);
  Syncer& syncer = *syncers_[layer];
  const int64_t done = syncer.done_round();
  syncer.OnFrame(frame, out);
  if (syncer.done_round() == done) return;
  if (layer == job_->pool.layer) {
    choice_ = ReadChoice(*job_, choices_, syncer.done_round() + 1);
  }
  Proceed(out);
}

void WorkerMachine::OnVerdict(const FrameHeader& header, Outbox& out) {
  const StepVerdict verdict{header.round, header.part == kSkipped};
  verdicts_.Add({&verdict, 1});
  for (const auto& syncer : syncers_) syncer->OnVerdict(out);
  Proceed(out);
}

void WorkerMachine::SaveLast(int64_t round, int32_t sender, Outbox& out) {
  if (sender != rank_) return;
  for (const auto& syncer : syncers_) syncer->SaveLast(round, out);
}

std::optional<ReplicaChecksums> WorkerMachine::OnChecksum(
    const ChecksumValues& checked, uint32_t crc) {
  const int64_t round = checked.round;
  const auto layers = static_cast<int>(job_->model().size());
  ReplicaChecksums all;
  all.round = round;
  all.is_sample = checked.sampled.has_value();
  const int count =
      all.is_sample ? SampledLayersOf(round, layers).count : layers;
  Checksums& rounds = all.is_sample ? samples_ : checksums_;
  std::map<int, uint32_t>& known = rounds[round];
  known[checked.layer] = crc;
  if (std::ssize(known) < count) {
    if (rounds.size() > kSampledRoundsMax) rounds.erase(rounds.begin());
    return std::nullopt;
  }
  for (const auto& [index, each] : known) all.layers.push_back(each);
  // Checksums of older rounds that are still missing will not come any more.
  rounds.erase(rounds.begin(), rounds.upper_bound(round));
  return all;
}

MachineReport WorkerMachine::Report() const {
  MachineReport report;
  report.begun_step = begun_step_;
  report.verdicts = verdicts_.all();
  report.ready_to_switch = ready_to_switch();
  for (size_t layer = 0; layer < syncers_.size(); ++layer) {
    const Syncer& syncer = *syncers_[layer];
    report.fetching |= syncer.fetching();
    // The servers report the rounds of their layers.
    if (UsesServers(job_->routes[layer].scheme) || syncer.fetching()) continue;
    report.peer_layers.push_back({static_cast<int32_t>(layer),
                                  syncer.done_round(), syncer.contributors()});
  }
  return report;
}

void WorkerMachine::OnEpoch(JobPtr job, Outbox& out) {
  const JobPtr before = std::exchange(job_, std::move(job));
  is_ready_sent_ = false;
  checksums_.clear();
  samples_.clear();
  probes_.OnEpoch();
  verdicts_.Add(job_->history.verdicts);
  plan_.OnEpoch(job_);
  for (RoundLedger& ledger : ledgers_) ledger.OnEpoch(job_);
  for (int layer = 0; layer < static_cast<int>(syncers_.size()); ++layer) {
    if (job_->routes[layer] == before->routes[layer]) {
      syncers_[layer]->OnEpoch(job_, out);
    } else {
      Reroute(layer, out);
    }
  }
  if (job_->PositionOf(rank_) >= 0) Proceed(out);
}

// A round that is done and not reported does not count: its verdict is not
// known, and the caller may still wait for it.
bool WorkerMachine::ready_to_switch() const {
  return job_->switches() && !syncers_.empty() &&
         absl::c_all_of(ledgers_, [&](const RoundLedger& ledger) {
           return ledger.done_round() >= job_->switch_round &&
                  ledger.is_reported();
         });
}

void WorkerMachine::SayReadyToSwitch(Outbox& out) {
  if (is_ready_sent_ || !ready_to_switch()) return;
  is_ready_sent_ = true;
  out.Add(SendMessage{ReadyToSwitch{job_->epoch}});
}

void WorkerMachine::Reroute(int layer, Outbox& out) {
  const std::unique_ptr<Syncer> before = std::move(syncers_[layer]);
  syncers_[layer] = std::make_unique<Syncer>(
      job_, layer, rank_, before->memory(), &ledgers_[layer], &schedule_);
  syncers_[layer]->Adopt(*before, out);
}

}  // namespace nereus
