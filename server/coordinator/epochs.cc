// Read in this order: a job starts (StartJob), an event needs another epoch
// (the On... methods, NeedsChange), Epochs asks all members for a report
// (StartChange), all members have reported (FinishChange), and the next epoch
// is in force (Enter, AdmitAll, TellAll).

#include "server/coordinator/epochs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "common/base/logging.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/protocol/connections.h"
#include "server/coordinator/join_rules.h"

namespace nereus {

namespace {

// Smallest change of the time of a turn that is told to the workers, as a part
// of that time.
constexpr double kTurnChangeMin = 0.2;

bool AllBackupsAreCurrent(const Job& job) {
  return absl::c_all_of(job.shard_servers, [](const ShardServers& each) {
    return each.backup_is_current;
  });
}

// True if a worker takes part in a later step than `step`.
bool GoesBeyond(const Job& job, const MemberList& roster, int64_t step) {
  return absl::c_any_of(roster.members(), [&](const MemberRecord& member) {
    if (!member.is_worker()) return false;
    // A worker that joined for a later step counts even before it begins this
    // step: it may be waiting for the worker that has left.
    const int position = job.PositionOf(member.id.rank);
    const bool joins = position >= 0 && job.workers[position].first_step > step;
    return joins || member.heartbeat.begun_step > step;
  });
}

// Returns the line about a plan for `learnt`, the model of which the job had
// `before`.
std::string DescribeLearnt(absl::Span<const LayerSpec> before,
                           absl::Span<const LayerSpec> learnt,
                           const std::vector<Route>& routes) {
  int known = 0;
  int lost = 0;
  int by_factor = 0;
  for (size_t i = 0; i < learnt.size(); ++i) {
    by_factor += routes[i].scheme == Scheme::kFactor;
    if (learnt[i].rows == before[i].rows) continue;
    ++(learnt[i].rows == kFactorsLost ? lost : known);
  }
  std::vector<std::string> parts;
  const auto layers = [](int count) {
    return absl::StrCat(count, count == 1 ? " layer" : " layers");
  };
  if (known > 0) {
    parts.push_back(
        absl::StrCat("workers have said the rows of ", layers(known)));
  }
  if (lost > 0) {
    parts.push_back(
        absl::StrCat(layers(lost), lost == 1 ? " has lost its factors"
                                             : " have lost their factors"));
  }
  return absl::StrCat(absl::StrJoin(parts, ", "), "; ", by_factor, " of ",
                      layers(static_cast<int>(learnt.size())), " by factor");
}

}  // namespace

Epochs::Epochs(const CoordinatorOptions* options, MemberList* roster,
               CheckpointLedger* checkpoints, EpochInForce saved,
               HostTable::State hosts, FactorReports::Lost lost_factors)
    : options_(*options),
      roster_(*roster),
      checkpoints_(*checkpoints),
      hosts_(std::move(hosts)),
      in_force_(std::move(saved)),
      links_(options->own_shard, options->lease()),
      replanner_(RulesFor(options->spec.options, options->spec.rules),
                 options->replan_interval),
      fusion_(options->spec.options.tune_fusion,
              options->spec.options.fusion_bytes),
      factors_(std::move(lost_factors)) {
  if (job() == nullptr) return;
  CoordinatorOutbox old_news;  // Stays empty: the hosts are known.
  roster_.NumberHosts(hosts_, old_news);
  last_target_ = job()->epoch;
  reasons_.insert(ChangeReason::kCoordinatorRestarted);
  if (!HasEveryShard()) reasons_.insert(ChangeReason::kShardLost);
}

absl::Status Epochs::StartJob(CoordinatorOutbox& out) {
  roster_.NumberHosts(hosts_, out);
  roster_.NumberWorkers();
  Job job = MakeFirstJob(options_, roster_);
  absl::StatusOr<Plan> plan =
      replanner_.FirstPlan(job.layers,
                           {options_.spec.workers, options_.spec.shards,
                            options_.spec.options.rounds.quorum == Quorum::kAll
                                ? roster_.WorkerHostsHere()
                                : 0},
                           job.options);
  if (!plan.ok()) {
    return InvalidArgumentError("cannot make a plan: ",
                                plan.status().message());
  }
  job.routes = std::move(plan->routes);
  in_force_.turns = roster_.FirstTurns();
  job.options.measure =
      replanner_.measures(options_.spec.options) || in_force_.turns.has_value();
  // The first step goes by this plan. The workers see their rows in it, and the
  // second step can go by the plan for these rows.
  if (LearnsRows(job)) job.switch_round = job.history.first_step;
  if (options_.start_checkpoint.has_value()) {
    checkpoints_.OnComplete(options_.StartFor(job.layers));
    std::string news = options_.DescribeOtherSettings(WorkerSettings(roster_));
    if (!news.empty()) {
      out.push_back(Announce{true, std::move(news), {LogEvent::kCheckpoint}});
    }
  }
  in_force_.job = NEREUS_TRY(MakeJob(std::move(job), options_.spec.shards));
  in_force_.explanations = std::move(plan->explanations);
  last_target_ = kFirstEpoch;
  checkpoints_.OnEpoch(*this->job(), options_.start_checkpoint.has_value());
  return absl::OkStatus();
}

void Epochs::OnHeartbeat(const MemberRecord& member,
                         const Heartbeat& heartbeat) {
  if (job() == nullptr || heartbeat.epoch != job()->epoch || !member.admitted) {
    return;
  }
  for (const int32_t shard : heartbeat.current_backups) {
    if (shard < 0 || shard >= options_.spec.shards) continue;
    const ShardServers& servers = job()->shard_servers[shard];
    if (member.id == PeerId::Shard(servers.primary) && servers.backup != -1) {
      current_backups_.insert(shard);
    }
  }
}

void Epochs::OnReport(MemberRecord& member, const EpochReport& report) const {
  const bool is_current = report.target == target_ && job() != nullptr &&
                          report.epoch == job()->epoch;
  if (is_current) member.report = report;
}

bool Epochs::OnMeasured(const MemberRecord& member, const Measured& measured,
                        absl::Time now, CoordinatorOutbox& out) {
  const bool has_news =
      replanner_.OnMeasured(member.id.rank, measured, *job(), now);
  const bool has_turns = UpdateTurns(out);
  if (!has_news) return has_turns;
  in_force_.times = *replanner_.known(*job(), fusion_.bytes());
  const std::string news = Replanner::Describe(*in_force_.times);
  out.push_back(Announce{false, news, {LogEvent::kPlan}});
  if (WantsAnotherPlan()) {
    reasons_.insert(ChangeReason::kBetterPlan);
    return has_turns;
  }
  reasons_.erase(ChangeReason::kBetterPlan);
  TuneFusionAnew(out);
  return has_turns;
}

bool Epochs::UpdateTurns(CoordinatorOutbox& out) {
  auto cost = replanner_.ComputingTime(*job());
  if (!in_force_.turns.has_value() || !cost.has_value()) return false;
  cost = std::min(*cost, kTurnCostMax);
  TurnRule& rule = *in_force_.turns;
  // Small changes are noise.
  if (rule.cost > absl::ZeroDuration() &&
      absl::AbsDuration(*cost - rule.cost) < kTurnChangeMin * rule.cost) {
    return false;
  }
  const auto step = static_cast<double>(BegunStep() + 1);
  rule.base += step * absl::ToDoubleSeconds(rule.cost - *cost);
  rule.cost = *cost;
  roster_.TellWorkers(rule, out);
  return true;
}

void Epochs::TuneFusionAnew(CoordinatorOutbox& out) {
  if (!fusion_.bytes().has_value()) return;
  const auto better = replanner_.FindBetterFusion(*job(), fusion_.reference());
  if (!better.has_value()) return;
  roster_.TellWorkers(*fusion_.Restart(better->bytes, BegunStep()), out);
  out.push_back(Announce{false,
                         absl::StrCat("tunes fusion from ", better->bytes,
                                      " bytes on: ", better->why),
                         {LogEvent::kPlan}});
}

bool Epochs::OnFactorRows(const MemberRecord& member, const FactorRows& rows,
                          CoordinatorOutbox& out) {
  const std::vector<int32_t> lost =
      factors_.OnReport(member.id.rank, member.Name(), rows);
  for (const int32_t layer : lost) {
    if (!MayLearn(*job())) break;  // The plan sends no factors in any case.
    const std::string& name = job()->layers[layer].name;
    out.push_back(Announce{
        false,
        absl::StrCat(member.Name(), " says that the gradient of layer ", name,
                     " is no product of factors",
                     IsSafeToChangePlan()
                         ? ": it goes dense from now on"
                         : ". Without checkpoints a job with backups keeps its "
                           "plan: workers send each other dense gradients"),
        {LogEvent::kPlan, -1, name}});
  }
  if (WantsPlanForFactors()) reasons_.insert(ChangeReason::kFactors);
  return !lost.empty();
}

void Epochs::OnFusionTimed(const MemberRecord& member, const FusionTimed& timed,
                           CoordinatorOutbox& out) {
  const std::optional<SetFusion> next = fusion_.OnTimed(member.id.rank, timed);
  if (!next.has_value()) return;
  roster_.TellWorkers(*next, out);
  if (!fusion_.done()) return;
  out.push_back(Announce{false, fusion_.DescribeBest(), {LogEvent::kPlan}});
}

std::optional<PeerId> Epochs::OnLostPeer(const MemberRecord& member,
                                         const LostPeer& lost, absl::Time now,
                                         CoordinatorOutbox& out) {
  const MemberRecord* const peer = roster_.Find(lost.peer);
  if (peer == nullptr || lost.peer == member.id || !peer->admitted) {
    return std::nullopt;
  }
  // Ignores the loss of an earlier epoch. In this epoch the two members have a
  // new connection, or report its loss.
  if (lost.epoch != job()->epoch) return std::nullopt;
  if (!lost.reached && SplitMates(member, *peer, lost.reason, out)) {
    return std::nullopt;
  }
  // No warning: the line about the next epoch warns if a member was lost.
  out.push_back(
      Announce{false,
               absl::StrCat(member.Name(), " lost its connection to ",
                            peer->Describe(), ": ", Printable(lost.reason)),
               {LogEvent::kConnection}});
  return links_.Note(member.id, lost.peer, lost.reached, now);
}

// A peer without a session may be dead: then the host need not be split.
bool Epochs::SplitMates(const MemberRecord& member, const MemberRecord& peer,
                        absl::string_view reason, CoordinatorOutbox& out) {
  if (!AreMates(*job(), member.id, peer.id) || !peer.session.has_value()) {
    return false;
  }
  const bool is_younger = member.id > peer.id;
  auto news = hosts_.Split(is_younger ? peer.request : member.request,
                           is_younger ? member.request : peer.request,
                           Printable(reason));
  if (!news.has_value()) return false;
  links_.NoteSplit(member.id, peer.id);
  recovery_.NoteSplit(member.id, peer.id);
  if (!news->empty()) {
    out.push_back(Announce{true, *std::move(news), {LogEvent::kHosts}});
  }
  return true;
}

// If there is a current backup, it takes over with the next epoch. Otherwise
// the job waits for another server and goes back to its last checkpoint.
bool Epochs::OnServerLost(PeerId server, CoordinatorOutbox& out) {
  if (HasEveryShard()) {
    const auto& all = job()->shard_servers;
    if (absl::c_any_of(all, [&](const auto& servers) {
          return servers.primary == server.rank;
        })) {
      out.push_back(Announce{false,
                             absl::StrCat("backups take over all chunks that ",
                                          PeerName(server), " served"),
                             {LogEvent::kReplicas}});
    }
    return true;
  }
  const bool may_go_back =
      checkpoints_.newest().has_value() || checkpoints_.is_completing();
  if (!may_go_back && !roster_.AllLeft()) return false;
  reasons_.insert(ChangeReason::kShardLost);
  if (!may_go_back) return true;
  out.push_back(
      Announce{true,
               absl::StrCat("the job waits for another ", PeerName(server),
                            ", and then goes back to its last checkpoint"),
               {LogEvent::kWaiting}});
  return true;
}

// The change.

// Events during a change become part of it: Epochs reads the reports only once
// all are here.
absl::StatusOr<bool> Epochs::Advance(absl::Time now, CoordinatorOutbox& out) {
  if (!target_.has_value() && NeedsChange()) StartChange(now, out);
  if (!target_.has_value() || !IsComplete() || !roster_.AllReported()) {
    return false;
  }
  return FinishChange(now, out);
}

bool Epochs::NeedsChange() const {
  if (Has(ChangeReason::kMemberLost) || Has(ChangeReason::kShardLost) ||
      Has(ChangeReason::kCoordinatorRestarted) || HasNewBackup() ||
      checkpoints_.needs_round() || MembersWantChange()) {
    return true;
  }
  // A better plan waits for a wanted checkpoint. Each epoch puts this
  // checkpoint off to a later round, and plans may change faster than a file is
  // written.
  const bool may_plan = !roster_.SomeLeave() && !checkpoints_.wanted();
  const bool wants_plan =
      Has(ChangeReason::kBetterPlan) || Has(ChangeReason::kFactors);
  if (job()->switches() ? roster_.AllReadyToSwitch() : wants_plan && may_plan) {
    return true;
  }
  // A broken link counts if both ends have a session: else one may be dead.
  const auto is_here = [&](PeerId id) {
    const MemberRecord* const member = roster_.Find(id);
    return member != nullptr && member->session.has_value();
  };
  const std::vector<PeerPair>& broken = links_.of_epoch();
  return absl::c_any_of(broken, [&](const PeerPair& link) {
    return is_here(link.first) && is_here(link.second);
  });
}

bool Epochs::MembersWantChange() const {
  for (const MemberRecord& member : roster_.members()) {
    if (!member.admitted && member.session.has_value()) return true;
    if (!member.has_left()) continue;
    // An epoch without this leaver is needed once another worker goes beyond
    // the leaver's last step. Before that all workers may be about to leave.
    // If this worker left early, the others probably go on. With partial rounds
    // they may be many steps behind. In both cases the change starts at once.
    if (job()->PositionOf(member.id.rank) >= 0 &&
        (job()->partial() || member.leaves_early ||
         GoesBeyond(*job(), roster_, *member.last_step))) {
      return true;
    }
  }
  return false;
}

void Epochs::StartChange(absl::Time now, CoordinatorOutbox& out) {
  target_ = ++last_target_;
  for (MemberRecord& member : roster_.members()) {
    member.report.reset();
    member.times.asked_at = now;
    // Delays the next notice: most changes are over before.
    member.times.notified_at = now;
    if (member.admitted) member.Send(PrepareEpoch{*target_}, out);
  }
}

// After the loss of a shard, all servers must be here to load a checkpoint.
bool Epochs::IsComplete() const {
  const bool has_shards = !Has(ChangeReason::kShardLost) ||
                          roster_.Count(Role::kShard) == options_.spec.shards;
  // Workers that have all left can make the last checkpoint, however few.
  return has_shards && (roster_.AllLeft() ||
                        roster_.WorkersHere() >= options_.spec.min_workers);
}

// REQUIRES: all admitted members have reported.
EpochChange Epochs::GatherReports() const {
  EpochChange change;
  for (const MemberRecord& member : roster_.members()) {
    if (!member.is_worker()) {
      change.servers.push_back(
          {member.id.rank, !member.admitted,
           member.admitted ? member.report->report : MachineReport()});
    } else if (member.admitted) {
      // If all have left, they take part in the next epoch all the same, to
      // make the last checkpoint.
      change.workers.push_back({member.id.rank,
                                member.has_left() && !roster_.AllLeft(),
                                member.report->report});
    } else {
      change.joiners.push_back(member.id.rank);
    }
  }
  for (int shard = 0; shard < options_.spec.shards; ++shard) {
    if (IsBackupCurrent(shard)) change.current_backups.push_back(shard);
  }
  change.worker_names = roster_.WorkerNames();
  change.worker_hosts = roster_.WorkerHosts();
  change.checkpoint = checkpoints_.wanted();
  change.fusion_bytes = fusion_.bytes();
  change.learns_rows = LearnsRows(*job());
  return change;
}

std::optional<Epochs::AnotherPlan> Epochs::FindPlan() {
  // While a leaver is a member, the plan stays: a leaver takes no new plan.
  if (roster_.SomeLeave()) return std::nullopt;
  const int workers = roster_.WorkersHere();
  const int hosts = roster_.WorkerHostsHere();
  if (WantsPlanForFactors()) {
    std::vector<LayerSpec> layers = LearntLayers();
    absl::StatusOr<Plan> plan =
        replanner_.PlanFor(layers, *job(), workers, hosts);
    // The first plan was made by the same rules.
    NEREUS_CHECK(plan.ok()) << plan.status();
    factors_.Explain(layers, plan->explanations);
    std::string why = DescribeLearnt(job()->model(), layers, plan->routes);
    return AnotherPlan{*std::move(plan), std::move(layers), std::move(why)};
  }
  if (!IsSafeToChangePlan()) return std::nullopt;
  auto better = replanner_.Better(*job(), workers, hosts);
  if (!better.has_value()) return std::nullopt;
  AnotherPlan another{std::move(better->plan),
                      {job()->model().begin(), job()->model().end()},
                      std::move(better->why)};
  factors_.Explain(another.layers, another.plan.explanations);
  return another;
}

// All members have reported, so no server reads the damaged checkpoint any more
// when the driver renames its folder. A checkpoint that lacks only its manifest
// is newer than newest().
bool Epochs::AwaitsCheckpoint(absl::Time now, CoordinatorOutbox& out) {
  if (const auto round = checkpoints_.BeginLook()) {
    out.push_back(SetCheckpointAside{job(), *round});
  }
  if (checkpoints_.setting_aside().has_value()) return true;
  if (!checkpoints_.is_completing()) return false;
  awaits_manifest_until_ =
      std::min(awaits_manifest_until_, now + options_.lease());
  if (!checkpoints_.newest().has_value() || now < awaits_manifest_until_) {
    return true;
  }
  out.push_back(Announce{
      true,
      absl::StrCat("the job goes back without the checkpoint of round ",
                   absl::StrJoin(checkpoints_.Abandon(), ", "),
                   ": its manifest has not been written for ",
                   absl::FormatDuration(options_.lease())),
      {LogEvent::kCheckpoint}});
  return false;
}

// Makes the next epoch from the reports if possible, else from the checkpoint.
absl::StatusOr<bool> Epochs::FinishChange(absl::Time now,
                                          CoordinatorOutbox& out) {
  roster_.NumberHosts(hosts_, out);
  EpochChange change = GatherReports();
  const bool lost = Has(ChangeReason::kShardLost);
  std::optional<AnotherPlan> another;
  if (!lost) another = FindPlan();
  if (another.has_value()) {
    change.plan = {another->plan.routes, another->layers};
  }
  absl::StatusOr<NextEpoch> next =
      lost ? AbortedError("a shard was lost: no server has all of its values")
           : MakeNextEpoch(*job(), *target_, change);
  const bool restarts = !next.ok();
  if (restarts && AwaitsCheckpoint(now, out)) return false;
  const auto& newest = checkpoints_.newest();
  if (restarts && newest.has_value()) {
    next = MakeRestartedEpoch(*job(), *target_, *newest, change);
  }
  if (!next.ok()) {
    return AbortedError(
        next.status().message(),
        newest.has_value() ? "" : ", and there is no checkpoint to go on from");
  }
  Enter(*std::move(next), restarts, another, now, out);
  return true;
}

void Epochs::Enter(NextEpoch next, bool restarts,
                   const std::optional<AnotherPlan>& another, absl::Time now,
                   CoordinatorOutbox& out) {
  int64_t begun_step = BegunStep();
  for (const MemberRecord& member : roster_.members()) {
    if (!member.report.has_value()) continue;
    begun_step = std::max(begun_step, member.report->report.begun_step);
  }
  const JobPtr before = std::exchange(in_force_.job, next.job);
  const bool learns = job()->layers != before->layers;
  const bool changes_plan = learns || job()->routes != before->routes;
  if (changes_plan) in_force_.explanations = another->plan.explanations;
  in_force_.workers_from_base = std::move(next.workers_from_base);
  in_force_.all_from_base = restarts;
  in_force_.broken_links = links_.Take();
  target_.reset();
  awaits_manifest_until_ = absl::InfiniteFuture();
  current_backups_.clear();
  if (!in_force_.turns.has_value()) in_force_.turns = roster_.FirstTurns();
  const bool was_restarted = Has(ChangeReason::kCoordinatorRestarted);
  reasons_.clear();
  factors_.OnEpoch(*job());
  if (WantsPlanForFactors()) reasons_.insert(ChangeReason::kFactors);
  // If this change could not bring the better plan, another change must.
  if ((roster_.SomeLeave() || restarts) && WantsAnotherPlan()) {
    reasons_.insert(ChangeReason::kBetterPlan);
  }
  checkpoints_.OnEpoch(*job(), restarts);
  replanner_.OnEpoch(*job(), changes_plan && !learns);
  in_force_.times = replanner_.known(*job(), fusion_.bytes());
  if (changes_plan && fusion_.bytes().has_value()) {
    // Trials with the old plan do not count for the new one.
    fusion_.Restart(replanner_.measures(job()->options)
                        ? another->plan.fusion_bytes
                        : *fusion_.bytes(),
                    BegunStep());
  }
  AnnounceEpoch(*job(), changes_plan ? another->why : "", out);
  std::string recovery =
      recovery_.OnEpoch(in_force_, roster_, was_restarted, begun_step,
                        options_.spec.workers, options_.spec.shards, now);
  if (!recovery.empty()) {
    out.push_back(Announce{true,
                           std::move(recovery),
                           {LogEvent::kEpoch, job()->history.first_step}});
  }
  if (!AllBackupsAreCurrent(*before) && AllBackupsAreCurrent(*job())) {
    out.push_back(Announce{false,
                           "the backup of every shard is current again",
                           {LogEvent::kReplicas}});
  }
}

// A member that drops its values has begun no step of this epoch, nor left.
void Epochs::AdmitAll(absl::Time now) {
  const bool is_first = job()->epoch == kFirstEpoch;
  in_force_.members.clear();
  roster_.UseRanks();
  for (MemberRecord& member : roster_.members()) {
    in_force_.members.push_back({member.id, member.request.incarnation,
                                 member.request.data_address, member.host});
    const bool from_base = in_force_.IsFromBase(member.id);
    if (from_base) {
      member.last_step.reset();
      if (member.is_worker()) member.leaves_early = false;
    }
    if (!member.admitted || from_base) {
      member.life = {job()->history.first_step, job()->epoch};
      member.heartbeat.begun_step = job()->history.first_step - 1;
      member.heartbeat.round = job()->history.base_round;
    }
    // A new member's lease begins here. A silent member gets no new lease: its
    // driver may stand still.
    if (!member.admitted) member.times.heard_at = now;
    if (!member.admitted && !is_first) member.times.admitted_at = now;
    member.admitted = true;
    member.report.reset();
    member.ready_to_switch = false;
  }
}

void Epochs::TellAll(CoordinatorOutbox& out) {
  for (const MemberRecord& member : roster_.members()) {
    // Greet tells members without a session when they resume.
    member.Send(in_force_.StartFor(member.id, options_.lease()), out);
  }
  std::vector<int32_t> workers;
  for (const EpochWorker& each : job()->workers) workers.push_back(each.rank);
  const auto set =
      fusion_.OnEpoch(std::move(workers), job()->history.first_step - 1);
  if (set.has_value()) roster_.TellWorkers(*set, out);
  if (in_force_.turns.has_value()) {
    roster_.TellWorkers(*in_force_.turns, out);
  }
}

void Epochs::Greet(MemberRecord& member, uint64_t epoch, absl::Time now,
                   CoordinatorOutbox& out) const {
  if (epoch < job()->epoch)
    member.Send(in_force_.StartFor(member.id, options_.lease()), out);
  if (fusion_.told().has_value() && member.is_worker()) {
    member.Send(*fusion_.told(), out);
  }
  if (in_force_.turns.has_value() && member.is_worker()) {
    member.Send(*in_force_.turns, out);
  }
  if (!target_.has_value()) return;
  member.times.asked_at = now;
  member.Send(PrepareEpoch{*target_}, out);
}

// Plans and backups.

// ChangePlan makes the backup of a shard not current if workers exchange one of
// the shard's layers in the present plan, whatever the next plan is.
bool Epochs::IsSafeToChangePlan() const {
  const bool exchanges = absl::c_any_of(job()->routes, [](const Route& route) {
    return !UsesServers(route.scheme);
  });
  return !job()->options.backup || options_.has_checkpoints || !exchanges;
}

bool Epochs::WantsAnotherPlan() {
  return job()->MaySwitchAfter(BegunStep() + 1) && IsSafeToChangePlan() &&
         replanner_
             .Better(*job(), roster_.WorkersHere(), roster_.WorkerHostsHere())
             .has_value();
}

bool Epochs::MayLearn(const Job& job) const {
  return options_.spec.workers_max() > 1 &&
         replanner_.AllowsFactors(job.model());
}

bool Epochs::LearnsRows(const Job& job) const {
  return MayLearn(job) &&
         absl::c_any_of(job.model(), [](const LayerSpec& layer) {
           return layer.has_factors && layer.rows == kRowsNotKnown;
         });
}

std::vector<LayerSpec> Epochs::LearntLayers() const {
  return factors_.Learnt(*job(), options_.spec.workers_max());
}

// A deterministic job learns rows only in its first switch, which happens after
// the same step in every run. It changes the plan for lost factors, too: the
// dense gradients of all workers in place of factors would take too much
// memory. The steps around this change can differ in the last bits between two
// runs.
//
// With backups and without checkpoints, the first switch is allowed although
// IsSafeToChangePlan may be false: until the backups are current again, the
// loss of a server costs only the job's first step. Such a job gets no other
// switch round.
bool Epochs::WantsPlanForFactors() const {
  if (!MayLearn(*job())) return false;
  const bool is_first = job()->switches();
  if (!is_first &&
      !(IsSafeToChangePlan() && job()->MaySwitchAfter(BegunStep() + 1))) {
    return false;
  }
  const std::vector<LayerSpec> learnt = LearntLayers();
  for (size_t i = 0; i < learnt.size(); ++i) {
    if (learnt[i].rows == job()->layers[i].rows) continue;
    const bool is_lost = learnt[i].rows == kFactorsLost;
    if (is_lost || is_first || !job()->options.deterministic) return true;
  }
  return false;
}

bool Epochs::IsBackupCurrent(int shard) const {
  return job()->shard_servers[shard].backup_is_current ||
         current_backups_.contains(shard);
}

bool Epochs::HasNewBackup() const {
  for (int shard = 0; shard < options_.spec.shards; ++shard) {
    if (job()->shard_servers[shard].backup_is_current) continue;
    if (IsBackupCurrent(shard)) return true;
  }
  return false;
}

// A primary has all values of its shard; a backup does if it is current.
bool Epochs::HasEveryShard(std::optional<PeerId> without) const {
  const auto lives = [&](int server) {
    const PeerId id = PeerId::Shard(server);
    const MemberRecord* const member = roster_.Find(id);
    return id != without && member != nullptr && member->admitted;
  };
  for (int shard = 0; shard < options_.spec.shards; ++shard) {
    const ShardServers& servers = job()->shard_servers[shard];
    if (lives(servers.primary)) continue;
    if (!lives(servers.backup) || !IsBackupCurrent(shard)) return false;
  }
  return true;
}

bool LacksServer(const Job& job, const MemberList& roster) {
  return absl::c_any_of(job.shard_servers, [&](const ShardServers& servers) {
    const MemberRecord* const primary =
        roster.Find(PeerId::Shard(servers.primary));
    return primary == nullptr || !primary->admitted;
  });
}

Job MakeFirstJob(const CoordinatorOptions& options, const MemberList& roster) {
  const JoinRequest& worker =
      absl::c_find_if(roster.members(), [](const MemberRecord& member) {
        return member.is_worker();
      })->request;
  Job job;
  job.id = options.job_id;
  job.epoch = kFirstEpoch;
  job.workers = FirstWorkers(options.spec.workers);
  for (const auto& [rank, host] : roster.WorkerHosts()) {
    job.workers[rank].host = host;
  }
  job.crew.worker_names = roster.WorkerNames();
  job.layers = worker.layers;
  job.options = options.spec.options;
  job.options.optimizer_place = DecidePlace(options.spec, roster).place;
  job.options.has_checkpoints = options.has_checkpoints;
  job.state_arrays = worker.caller.state_arrays;
  // Makes a checkpoint of round 0, in case a shard dies early.
  if (options.has_checkpoints) job.checkpoint_round = 0;
  if (!options.start_checkpoint.has_value()) return job;
  const CheckpointRecord start = options.StartFor(job.layers);
  job.history.base_round = start.round;
  job.history.first_step = start.round + 1;
  job.history.contributions_before = start.contributions;
  job.checkpoint_round = kInitialRound;
  for (EpochWorker& each : job.workers) {
    each.first_step = job.history.first_step;
  }
  return job;
}

}  // namespace nereus
