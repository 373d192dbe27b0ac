#include "worker/machine/worker_machine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/compute/blocks.h"
#include "worker/machine/float_bytes.h"

namespace nereus {
namespace {

// Of layers that are gathered at a time: enough that all shards have something
// to send, wherever the chunks are. What comes first is the send order's
// business (SendQueue), so little would be gained by less.
constexpr int64_t kGatherBytesMax = int64_t{64} << 20;

// What a worker sends of its gradient of a layer.
int64_t BytesSent(const Job& job, int layer, int64_t round) {
  const LayerSpec& spec = job.layers[layer];
  const Route& route = job.routes[layer];
  const int64_t values = route.scheme == Scheme::kFactor
                             ? spec.rows * (spec.m + spec.n)
                             : spec.parameters;
  const int64_t bytes = values * WireBytes(route.wire);
  if (!job.IsSparse(layer)) return bytes;
  const double share = static_cast<double>(job.BlocksIn(round)) /
                       static_cast<double>(job.block_count());
  return static_cast<int64_t>(static_cast<double>(bytes) * share);
}

}  // namespace

WorkerMachine::WorkerMachine(JobPtr job, int rank,
                             std::vector<LayerMemory> memory)
    : rank_(rank),
      job_(std::move(job)),
      fusion_bytes_(job_->options.fusion_bytes) {
  NEREUS_CHECK(memory.size() == job_->model().size())
      << memory.size() << " memories, " << job_->model().size() << " layers";
  if (job_->block_layer >= 0) {
    const Buffer& model = memory.front().parameters;
    choices_ = Buffer::AllocateLike(model, FloatBytes(job_->block_count()));
    if (choices_.data() != nullptr) {
      std::fill_n(choices_.floats(), job_->block_count(), kFirstChoice);
    }
    memory.push_back({choices_, Buffer()});
  }
  const int position = job_->PositionOf(rank);
  NEREUS_CHECK(position >= 0) << "worker " << rank;
  begun_step_ = job_->workers[position].first_step - 1;
  verdicts_.Add(job_->verdicts);
  for (size_t layer = 0; layer < memory.size(); ++layer) {
    syncers_.push_back(std::make_unique<Syncer>(
        job_, static_cast<int>(layer), rank, std::move(memory[layer])));
  }
}

void WorkerMachine::Start(Outbox& out) {
  for (auto& syncer : syncers_) syncer->Start(out);
}

void WorkerMachine::Probe(int server, int64_t train, int frames,
                          int64_t payload_bytes, Outbox& out) {
  if (probe_payload_.bytes() < payload_bytes) {
    probe_payload_ = Buffer::AllocateZeroed(payload_bytes);
  }
  FrameHeader header =
      MakeHeader(*job_, PeerId::Worker(rank_), FrameKind::kProbe, /*layer=*/0,
                 /*chunk=*/0, train);
  header.wire = WireType::kFloat32;
  header.payload_bytes = static_cast<uint32_t>(payload_bytes);
  for (int frame = 0; frame < frames; ++frame) {
    header.part = frame + 1 < frames ? kMoreFollow : kLastOfTrain;
    out.Add(SendFrame{PeerId::Shard(server),
                      {header, probe_payload_.Slice(0, payload_bytes)}});
  }
}

bool WorkerMachine::BeginStep(int64_t step, Outbox& out) {
  if (frozen_ || (job_->switches() && step > job_->switch_round)) return false;
  for (auto& syncer : syncers_) syncer->BeginStep(out);
  for (size_t layer = 0; layer < job_->model().size(); ++layer) {
    if (syncers_[layer]->fetching()) return false;
  }
  begun_step_ = std::max(begun_step_, step);
  return true;
}

bool WorkerMachine::drained() const {
  return job_->switches() && !syncers_.empty() &&
         std::all_of(syncers_.begin(), syncers_.end(), [&](const auto& syncer) {
           return syncer->done_round() >= job_->switch_round &&
                  syncer->ledger().is_reported();
         });
}

void WorkerMachine::SaySettled(Outbox& out) {
  if (drained_said_ || !drained()) return;
  drained_said_ = true;
  out.Add(SendMessage{Drained{job_->epoch}});
}

void WorkerMachine::Reroute(int layer, Outbox& out) {
  const std::unique_ptr<Syncer> before = std::move(syncers_[layer]);
  syncers_[layer] =
      std::make_unique<Syncer>(job_, layer, rank_, before->memory());
  syncers_[layer]->Adopt(*before, out);
}

absl::Status WorkerMachine::OnPush(int layer, int64_t round, Buffer gradient,
                                   Outbox& out, bool fit, float scale) {
  begun_step_ = std::max(begun_step_, round);
  if (IsBarred(round, fit)) {
    const Buffer zeros = Buffer::AllocateZeroed(gradient.bytes());
    if (job_->options.optimizer_place == OptimizerPlace::kWorker) {
      out.Add(CopyValues{gradient, zeros});  // The mean goes there, too.
    } else {
      gradient = zeros;
    }
  }
  if (scale != 1.0f) out.Add(ScaleValues{gradient, 1.0f / scale});
  NEREUS_RETURN_IF_ERROR(
      syncers_[layer]->Push(round, std::move(gradient), out));
  CountPush(layer, round, fit, out);
  return absl::OkStatus();
}

absl::Status WorkerMachine::OnPushFactors(int layer, int64_t round,
                                          FactorBuffers factors, Outbox& out,
                                          bool fit, float scale) {
  begun_step_ = std::max(begun_step_, round);
  if (IsBarred(round, fit)) {
    for (Buffer* values : {&factors.output_gradient, &factors.input}) {
      *values = Buffer::AllocateZeroed(values->bytes());
    }
  }
  factors.scale = 1.0f / scale;
  NEREUS_RETURN_IF_ERROR(
      syncers_[layer]->PushFactors(round, std::move(factors), out));
  CountPush(layer, round, fit, out);
  return absl::OkStatus();
}

bool WorkerMachine::IsBarred(int64_t round, bool fit) const {
  return !fit && verdicts_.Skipped(round) == false;
}

void WorkerMachine::CountPush(int layer, int64_t round, bool fit, Outbox& out) {
  if (pushed_.step != round) {
    // Whatever of the last step the caller has not waited for is gathered too.
    for (int each = 0; each < static_cast<int>(syncers_.size()); ++each) {
      if (syncers_[each]->ledger().pushed_round() < round) GatherNow(each, out);
    }
    SendHeld(out);  // The caller has left out layers of the last step.
    pushed_ = {round, 0, true};
    done_before_ = 0;
    gathered_before_ = 0;
  }
  ++pushed_.layers;
  pushed_.fit = pushed_.fit && fit;
  held_.push_back(layer);
  held_bytes_ += BytesSent(*job_, layer, round);
  if (frozen_ || holds()) return;
  SendHeld(out);
  Vote(out);
  GatherMore(out);
  SaySettled(out);
}

bool WorkerMachine::holds() const {
  if (awaits_choice()) return true;
  if (pushed_all()) return false;
  return job_->options.overlap == Overlap::kNone || held_bytes_ < fusion_bytes_;
}

void WorkerMachine::SendHeld(Outbox& out) {
  if (held_.empty()) return;
  if (job_->block_layer >= 0 && norms_.bytes() == 0) {
    norms_ = Buffer::AllocateLike(choices_, choices_.bytes());
  }
  for (const int layer : std::exchange(held_, {})) {
    syncers_[layer]->Send(out, choice_, norms_);
  }
  held_bytes_ = 0;
  if (norms_.bytes() > 0 && pushed_all()) PushNorms(out);
}

bool WorkerMachine::awaits_choice() const {
  return job_->block_layer >= 0 &&
         syncers_[job_->block_layer]->done_round() < pushed_.step - 1;
}

std::string WorkerMachine::Missing(int layer) const {
  const Syncer& syncer = *syncers_[layer];
  if (!syncer.ledger().is_unsent()) return syncer.Missing();
  if (!awaits_choice()) return "";
  const std::string missing = syncers_[job_->block_layer]->Missing();
  return absl::StrCat("which blocks travel, from ",
                      missing.empty() ? "the servers" : missing);
}

std::optional<Stall> WorkerMachine::OldestWait() const {
  std::optional<Stall> oldest;
  for (int layer = 0; layer < static_cast<int>(job_->model().size()); ++layer) {
    const Syncer& syncer = *syncers_[layer];
    const int64_t round = syncer.done_round() + 1;
    std::string missing = Missing(layer);
    const bool is_own = syncer.ledger().is_unsent() && missing.empty();
    const bool waits =
        syncer.ledger().is_open() && syncer.ledger().is_requested() && !is_own;
    if (!waits || (oldest.has_value() && oldest->round <= round)) continue;
    oldest = Stall{layer, round, std::move(missing), absl::ZeroDuration()};
  }
  return oldest;
}

void WorkerMachine::TakeChoice(Outbox& out) {
  const int64_t step = syncers_[job_->block_layer]->done_round() + 1;
  choice_ = ReadChoice(*job_, choices_, step);
  if (!frozen_) GoOn(out);
}

void WorkerMachine::PushNorms(Outbox& out) {
  Syncer& blocks = *syncers_[job_->block_layer];
  const absl::Status status =
      blocks.Push(pushed_.step, std::exchange(norms_, Buffer()), out);
  NEREUS_CHECK(status.ok()) << status;
  blocks.Send(out);
  blocks.Gather(out);
}

void WorkerMachine::GoOn(Outbox& out) {
  if (!holds()) SendHeld(out);
  Vote(out);
  for (const int layer : std::exchange(waited_for_, {})) OnWait(layer, out);
  GatherMore(out);
}

void WorkerMachine::OnWait(int layer, Outbox& out) {
  const bool held = std::find(held_.begin(), held_.end(), layer) != held_.end();
  if (held && !frozen_ && !awaits_choice()) SendHeld(out);
  GatherNow(layer, out);
  GatherMore(out);
  SaySettled(out);
}

void WorkerMachine::OnLeave(Outbox& out) {
  // What is sent while the machine is frozen is sent again in the next epoch.
  for (const auto& syncer : syncers_) syncer->Leave(out);
}

void WorkerMachine::GatherNow(int layer, Outbox& out) {
  if (!syncers_[layer]->ledger().is_open()) return;
  if (frozen_ || awaits_choice()) {
    waited_for_.push_back(layer);
  } else {
    syncers_[layer]->Gather(out);
  }
}

void WorkerMachine::GatherMore(Outbox& out) {
  if (!job_->decoupled() || frozen_ || awaits_choice() || !pushed_all()) {
    return;
  }
  const auto done = [&](size_t layer) {
    return syncers_[layer]->done_round() >= pushed_.step;
  };
  while (done_before_ < gathered_before_ && done(done_before_)) ++done_before_;
  const auto bytes_under_way = [&](size_t layer) {
    return done(layer) ? 0 : 4 * job_->layers[layer].parameters;
  };
  int64_t bytes = 0;
  for (size_t layer = done_before_; layer < gathered_before_; ++layer) {
    bytes += bytes_under_way(layer);
  }
  while (gathered_before_ < job_->model().size() && bytes < kGatherBytesMax) {
    const size_t layer = gathered_before_++;
    if (!done(layer)) syncers_[layer]->Gather(out);
    bytes += bytes_under_way(layer);
  }
}

void WorkerMachine::Vote(Outbox& out) const {
  if (!job_->votes() || !pushed_all() ||
      verdicts_.Skipped(pushed_.step).has_value()) {
    return;
  }
  FrameHeader vote = MakeHeader(*job_, PeerId::Worker(rank_), FrameKind::kVote,
                                /*layer=*/0, /*chunk=*/0, pushed_.step);
  vote.part = pushed_.fit ? kGood : kSkipped;
  std::set<int32_t> servers;
  for (const ShardServers& each : job_->shard_servers) {
    servers.insert(each.primary);
  }
  for (const int32_t server : servers) {
    out.Add(SendFrame{PeerId::Shard(server), {vote, {}}});
  }
}

absl::StatusOr<Landing> WorkerMachine::OnVerdictHeader(
    PeerId from, const FrameHeader& header) const {
  if (!job_->votes() ||
      from != PeerId::Shard(job_->shard_servers.front().primary) ||
      header.layer != 0 || header.chunk != 0 || header.offset != 0 ||
      header.payload_bytes != 0 || header.part > kSkipped || header.round < 0 ||
      header.round > begun_step_) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header),
                     ": the server of shard 0 says what the votes on "
                     "a step come to, of which step ",
                     begun_step_, " is the last"));
  }
  // What was heard must be in the report.
  const bool known = verdicts_.Skipped(header.round).has_value();
  return frozen_ || known ? Landing::Discard() : Landing::Scratch();
}

absl::StatusOr<Landing> WorkerMachine::OnProbeHeader(
    PeerId from, const FrameHeader& header) const {
  if (job_->options.measure && from.role == Role::kShard && header.layer == 0 &&
      header.chunk == 0 && header.offset == 0 && header.payload_bytes == 0) {
    return Landing::Scratch();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      DescribeFrame(header), ": servers answer probes, without payload"));
}

absl::StatusOr<Landing> WorkerMachine::OnHeader(
    PeerId from, const FrameHeader& header) const {
  NEREUS_RETURN_IF_ERROR(CheckFrame(*job_, from, header));
  if (header.kind == FrameKind::kVerdict) return OnVerdictHeader(from, header);
  if (header.kind == FrameKind::kProbe) return OnProbeHeader(from, header);
  const bool between_workers =
      header.kind == FrameKind::kFactors || header.kind == FrameKind::kSum ||
      header.kind == FrameKind::kMean || header.kind == FrameKind::kPullRound ||
      header.kind == FrameKind::kPull;
  const bool for_worker = header.kind == FrameKind::kResult || between_workers;
  if (!for_worker || (between_workers && from.role != Role::kWorker)) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header),
        ": workers take results, and from workers factors, sums, means and "
        "pulls"));
  }
  NEREUS_ASSIGN_OR_RETURN(Landing landing,
                          syncers_[header.layer]->OnHeader(header));
  // They are sent again in the next epoch.
  if (frozen_ && from.role == Role::kWorker) return Landing::Discard();
  return landing;
}

void WorkerMachine::OnFrame(PeerId, const Frame& frame, Outbox& out) {
  if (frame.header.kind == FrameKind::kProbe) {
    return out.Add(ProbeAnswered{frame.header.round});
  }
  if (frame.header.kind == FrameKind::kVerdict) {
    const StepVerdict verdict{frame.header.round,
                              frame.header.part == kSkipped};
    verdicts_.Add({&verdict, 1});
    for (auto& syncer : syncers_) syncer->OnVerdict(verdict, out);
    GatherMore(out);
    SaySettled(out);
    return;
  }
  Syncer& syncer = *syncers_[frame.header.layer];
  const int64_t done = syncer.done_round();
  syncer.OnFrame(frame.header, out);
  if (syncer.done_round() == done) return;
  if (static_cast<int>(frame.header.layer) == job_->block_layer) {
    TakeChoice(out);
  }
  GatherMore(out);
  SaySettled(out);
}

void WorkerMachine::SaveLast(int64_t round, int32_t sender, Outbox& out) {
  if (sender != rank_) return;
  for (const auto& syncer : syncers_) syncer->SaveLast(round, out);
}

std::optional<ReplicaChecksums> WorkerMachine::OnChecksum(int layer,
                                                          int64_t round,
                                                          uint32_t crc) {
  std::map<int, uint32_t>& known = checksums_[round];
  known[layer] = crc;
  if (known.size() < job_->model().size()) return std::nullopt;
  ReplicaChecksums all;
  all.round = round;
  for (const auto& [index, each] : known) all.layers.push_back(each);
  // Of an older round, the rest will not come any more.
  checksums_.erase(checksums_.begin(), checksums_.upper_bound(round));
  return all;
}

MachineReport WorkerMachine::Report() const {
  MachineReport report;
  report.begun_step = begun_step_;
  report.verdicts = verdicts_.all();
  report.drained = drained();
  for (size_t layer = 0; layer < syncers_.size(); ++layer) {
    const Syncer& syncer = *syncers_[layer];
    report.fetching |= syncer.fetching();
    const bool passes = !UsesServers(job_->routes[layer].scheme);
    if (!passes || syncer.fetching()) continue;
    report.peer_layers.push_back({static_cast<int32_t>(layer),
                                  syncer.done_round(), syncer.contributors()});
  }
  return report;
}

void WorkerMachine::OnEpoch(JobPtr job, Outbox& out) {
  const int64_t fusion_before = job_->options.fusion_bytes;
  const JobPtr before = std::exchange(job_, std::move(job));
  if (job_->options.fusion_bytes != fusion_before) {
    fusion_bytes_ = job_->options.fusion_bytes;
  }
  frozen_ = false;
  drained_said_ = false;
  checksums_.clear();
  verdicts_.Add(job_->verdicts);
  for (int layer = 0; layer < static_cast<int>(syncers_.size()); ++layer) {
    if (job_->routes[layer] == before->routes[layer]) {
      syncers_[layer]->OnEpoch(job_, out);
    } else {
      Reroute(layer, out);
    }
  }
  if (job_->PositionOf(rank_) < 0) return;
  GoOn(out);
  SaySettled(out);
}

}  // namespace nereus
