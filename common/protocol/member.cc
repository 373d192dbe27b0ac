#include "common/protocol/member.h"

#include <utility>
#include <variant>

#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/connections.h"

namespace nereus {

Member::Member(JoinRequest request, MakeMachine make_machine)
    : request_(std::move(request)), make_machine_(std::move(make_machine)) {}

// Sends again the messages that a broken session may have lost. The coordinator
// ignores messages that it already has. Leave comes after the checksums,
// because the job can end with the last Leave.
void Member::OnSession(Outbox& out) {
  // After Refusal or JobOver the process has told its user the outcome, and
  // must not join again.
  if (over_) return;
  if (start_ == nullptr) {
    out.Add(SendMessage{request_});
  } else {
    out.Add(SendMessage{Resume{start_->job->id, start_->self,
                               request_.incarnation, start_->job->epoch}});
    if (damaged_.has_value()) out.Add(SendMessage{*damaged_});
    for (const LostPeer& lost : lost_peers_) out.Add(SendMessage{lost});
    if (!factor_rows_.rows.empty()) out.Add(SendMessage{factor_rows_});
    if (machine_->Report().ready_to_switch) {
      out.Add(SendMessage{ReadyToSwitch{start_->job->epoch}});
    }
    if (wanted_.has_value()) out.Add(SendMessage{*wanted_});
    if (checksums_.has_value()) out.Add(SendMessage{*checksums_});
    if (leave_.has_value()) out.Add(SendMessage{*leave_});
    for (const auto& [shard, part] : parts_) out.Add(SendMessage{part});
    if (failure_.has_value()) out.Add(SendMessage{*failure_});
  }
}

void Member::OnLeave(int64_t last_step, bool early, Outbox& out) {
  leave_ = Leave{last_step, start_->job->epoch, early};
  out.Add(SendMessage{*leave_});
}

void Member::OnWantCheckpoint(int64_t begun_step, Outbox& out) {
  wanted_ = WantCheckpoint{begun_step};
  out.Add(SendMessage{*wanted_});
}

void Member::OnFactorRows(const FactorRows& report, Outbox& out) {
  if (factor_rows_.Add(report)) out.Add(SendMessage{factor_rows_});
}

void Member::OnChecksum(const ChecksumValues& checked, uint32_t crc,
                        Outbox& out) {
  std::optional<ReplicaChecksums> all = machine_->OnChecksum(checked, crc);
  if (!all.has_value()) return;
  all->epoch = start_->job->epoch;
  // A later comparison of a server's copies finds what a lost one would.
  if (!all->is_sample && !all->shard.has_value()) checksums_ = *all;
  out.Add(SendMessage{*std::move(all)});
}

void Member::OnPart(const CheckpointPart& part, Outbox& out) {
  parts_[part.shard] = part;
  out.Add(SendMessage{part});
}

void Member::OnDamaged(int64_t round, const std::string& reason, Outbox& out) {
  damaged_ = CheckpointDamaged{start_->job->epoch, round, reason};
  out.Add(SendMessage{*damaged_});
}

// Sends only the first failure: later failures may be consequences of it.
void Member::OnFailure(const std::string& reason, Outbox& out) {
  if (failure_.has_value()) return;
  failure_ = Failure{reason};
  out.Add(SendMessage{*failure_});
}

// The coordinator puts the name of the reporting member in front of the text.
// So the text names the worker that made the gradient only if this worker is
// not the reporting member.
void Member::OnBadValue(const ValueCheck& check, const BadValue& found,
                        Outbox& out) {
  const LayerSpec& layer = start_->job->layers[check.layer];
  const PeerId whose = PeerId::Worker(check.worker);
  const bool names = check.of == Checked::kGradient && whose != start_->self;
  OnFailure(absl::StrCat(names ? start_->job->NameOf(whose) + ": " : "",
                         "layer ", layer.name, ", step ", check.round, ": ",
                         SubjectOf(check.of), found.value, " at element ",
                         check.offset + found.index, " of ", layer.parameters),
            out);
}

void Member::OnMessage(const CoordinatorMessage& message, Outbox& out) {
  if (over_) return;
  if (const auto* start = std::get_if<EpochStart>(&message)) {
    Enter(*start, out);
  } else if (const auto* prepare = std::get_if<PrepareEpoch>(&message)) {
    if (machine_ == nullptr) return;
    // Freeze comes before Report, so that the report stays true.
    frozen_ = true;
    machine_->Freeze();
    out.Add(SendMessage{
        EpochReport{prepare->target, start_->job->epoch, machine_->Report()}});
  } else if (const auto* last = std::get_if<SaveLast>(&message)) {
    // A message for another epoch may name a round that is not the last round
    // of the job. The member ignores it.
    const bool is_current =
        machine_ != nullptr && last->epoch == start_->job->epoch;
    if (is_current) machine_->SaveLast(last->round, last->sender, out);
  } else if (const auto* refusal = std::get_if<Refusal>(&message)) {
    End(refusal->why, out);
  } else if (const auto* job_over = std::get_if<JobOver>(&message)) {
    // A stopped job is what the workers that have left wanted.
    const bool is_good =
        job_over->state == JobState::kStopped && leave_.has_value();
    End(is_good ? absl::OkStatus() : OutcomeOf(*job_over), out);
  }
}

// FollowEpoch comes before the machine's actions, so that the connections exist
// when the machine sends frames.
void Member::Enter(const EpochStart& start, Outbox& out) {
  // The coordinator sends an EpochStart again if it does not know whether the
  // member has got it.
  if (start_ != nullptr && start.job->epoch <= start_->job->epoch) return;
  const absl::Status same = CheckModel(*start.job);
  if (!same.ok()) return End(same, out);
  if (start_ != nullptr) ForgetReplaced(RosterOf(*start_), RosterOf(start));
  start_ = std::make_shared<const EpochStart>(start);
  frozen_ = false;
  checksums_.reset();
  lost_peers_.clear();
  damaged_.reset();
  const Job& job = *start_->job;
  if (job.checkpoint_round >= job.history.first_step) wanted_.reset();
  out.Add(FollowEpoch{start_});
  // This member goes back to the base round: its messages about later steps are
  // no longer true.
  if (start.from_base) {
    leave_.reset();
    parts_.clear();
    if (wanted_.has_value()) wanted_->begun_step = kInitialRound;
  }
  if (machine_ == nullptr || start.from_base) {
    machine_ = make_machine_(*start_, out);
  } else {
    machine_->OnEpoch(start_->job, out);
  }
}

// The machine and the caller's memory fit one model. A worker knows it from its
// request, and a server from its first epoch.
absl::Status Member::CheckModel(const Job& job) const {
  absl::Span<const LayerSpec> model = request_.layers;
  if (start_ != nullptr) model = start_->job->model();
  if (model.empty()) return absl::OkStatus();
  const absl::Status same =
      CompareModels(WithRowsOf(job.model(), model), job.model(),
                    absl::StrCat("epoch ", job.epoch));
  if (same.ok()) return same;
  return InternalError(
      "the coordinator has begun an epoch with another model: ",
      same.message());
}

// A server that replaces another one has the same id and another incarnation.
void Member::ForgetReplaced(const Roster& before, const Roster& now) {
  std::erase_if(reached_, [&](PeerId peer) {
    const auto old = before.find(peer);
    const auto next = now.find(peer);
    return old == before.end() || next == now.end() ||
           old->second != next->second;
  });
}

void Member::End(const absl::Status& outcome, Outbox& out) {
  over_ = true;
  out.Add(EndMembership{outcome});
}

void Member::OnLostPeer(PeerId peer, const std::string& reason, Outbox& out) {
  if (start_ == nullptr || over_) return;
  lost_peers_.push_back({start_->job->epoch, peer, reason, HasReached(peer)});
  out.Add(SendMessage{lost_peers_.back()});
}

// Members enter an epoch one after the other. So a peer can send frames of the
// next epoch before this member has entered it, and those wait. A peer can also
// send frames of an epoch that this member has left, and those are dropped.
absl::StatusOr<Landing> Member::OnHeader(PeerId from,
                                         const FrameHeader& header) const {
  if (machine_ == nullptr) return Landing::Wait();
  const Job& job = *start_->job;
  if (header.job != job.id) {
    return InvalidArgumentError(DescribeFrame(header), ": job is ", header.job,
                                ", expected ", job.id);
  }
  if (header.epoch < job.epoch) return Landing::Discard();
  if (header.epoch > job.epoch) return Landing::Wait();
  return machine_->OnHeader(from, header);
}

void Member::OnFrame(PeerId from, const Frame& frame, Outbox& out) {
  machine_->OnFrame(from, frame, out);
}

}  // namespace nereus
