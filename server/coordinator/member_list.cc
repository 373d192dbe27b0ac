// Read in this order: a member's name, heartbeats and death (MemberRecord),
// members of a saved state, looking a member up (Find...), joining and leaving
// the list (Add, Remove), numbers of hosts and workers, pauses of the
// coordinator (NoticePause), questions about all members, and messages to many
// (TellWorkers, EndForAll). The life of a member is drawn in the header.

#include "server/coordinator/member_list.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/printable.h"

namespace nereus {
namespace {

// Shortest pause. Ticks come more often. So if the coordinator is not called
// for this long, its process has stood still.
const absl::Duration kPauseMin = absl::Seconds(1);

// Time for which a coordinator that finds its job over awaits its members.
const absl::Duration kReturnTimeout = absl::Seconds(2);

}  // namespace

std::string MemberRecord::Name() const {
  return is_worker() ? absl::StrCat("worker ", request.name) : PeerName(id);
}

std::string MemberRecord::Describe() const {
  return absl::StrCat(Name(), " (", is_worker() ? "" : request.name + " ",
                      "at ", request.data_address, ")");
}

std::optional<Announce> MemberRecord::NoteHeartbeat(const Heartbeat& last,
                                                    const Job* job,
                                                    absl::Time now) {
  if (last.work != heartbeat.work) times.moved_at = now;
  // The time for a report begins anew: the member has answered nothing during
  // its work.
  if (heartbeat.work.has_value() && !last.work.has_value()) {
    times.asked_at = std::max(times.asked_at, now);
  }
  const std::optional<Stall> before = std::exchange(heartbeat, last).stall;
  if (admitted && last.round >= life.first_step) {
    times.took_part_at = std::min(times.took_part_at, times.last_message_at);
  }
  if (!last.stall.has_value()) return std::nullopt;
  const Stall& stall = *last.stall;
  const bool goes_on = before.has_value() && before->layer == stall.layer &&
                       before->round == stall.round;
  if (!goes_on) stall_pace = LogPace();
  if (!stall_pace.IsDue(stall.waited)) return std::nullopt;
  const std::string& layer = job->layers[stall.layer].name;
  return Announce{
      true,
      absl::StrCat("layer ", layer, ", round ", stall.round, " has waited ",
                   absl::FormatDuration(
                       absl::Trunc(stall.waited, absl::Milliseconds(100))),
                   " at ", Name(), " for ", Printable(stall.missing)),
      {LogEvent::kStall, stall.round, layer}};
}

// A member with long work reports late.
std::string MemberRecord::WhyDead(absl::Duration lease, bool report_due,
                                  absl::Time now) const {
  if (told_over) return "";
  const bool owes_report =
      report_due && !report.has_value() && !heartbeat.work.has_value();
  if (IsSilent(lease, now)) {
    return absl::StrFormat("it sent nothing for %.1f s",
                           absl::ToDoubleSeconds(now - times.heard_at));
  }
  if (!admitted) return "";
  if (heartbeat.work.has_value() && now - times.moved_at > lease) {
    return absl::StrFormat("it %s, and has got no further for %.1f s",
                           DescribeWork(*heartbeat.work),
                           absl::ToDoubleSeconds(now - times.moved_at));
  }
  if (owes_report && now - times.asked_at > lease) {
    return absl::StrCat("it was asked for a report and sent none within ",
                        absl::FormatDuration(lease));
  }
  const bool is_dead = !session.has_value() && now > times.dead_after;
  return is_dead ? "its session to the coordinator has ended" : "";
}

// A saved member has no session. It has one lease to resume in a new one.
MemberList::MemberList(const CoordinatorState& saved, absl::Time now,
                       absl::Duration lease)
    : next_rank_(saved.next_rank), awake_at_(now) {
  if (IsOver(saved.state)) lease = std::min(lease, kReturnTimeout);
  for (const CoordinatorState::Member& each : saved.members) {
    MemberRecord member;
    member.id = each.id;
    member.request = each.request;
    member.times.last_message_at = now;
    member.times.heard_at = now;
    member.times.dead_after = now + lease;
    member.times.notified_at = now;
    member.admitted = true;
    if (each.left) member.last_step = each.last_step;
    member.leaves_early = each.left_early;
    member.life = each.life;
    members_.push_back(std::move(member));
  }
}

std::vector<CoordinatorState::Member> MemberList::Saved() const {
  std::vector<CoordinatorState::Member> saved;
  for (const MemberRecord& member : members_) {
    if (!member.admitted) continue;
    saved.push_back({member.id, member.request, member.has_left(),
                     member.has_left() && member.leaves_early,
                     member.last_step.value_or(kInitialRound), member.life});
    saved.back().request.layers.clear();
  }
  return saved;
}

MemberRecord* MemberList::Find(SessionId session) {
  return FindIf([&](const auto& m) { return m.session == session; });
}

MemberRecord* MemberList::Find(PeerId id) {
  return FindIf([&](const auto& m) { return m.id == id; });
}

const MemberRecord* MemberList::Find(PeerId id) const {
  return const_cast<MemberList*>(this)->Find(id);
}

MemberRecord* MemberList::FindIncarnation(uint64_t incarnation) {
  return FindIf(
      [&](const auto& m) { return m.request.incarnation == incarnation; });
}

const MemberRecord* MemberList::FindHolder(const JoinRequest& request) const {
  if (request.role == Role::kShard) return Find(PeerId::Shard(request.shard));
  return const_cast<MemberList*>(this)->FindIf([&](const auto& m) {
    return m.is_worker() && !m.has_left() && m.request.name == request.name;
  });
}

// A worker may get the rank of a worker that is gone, if that was in no epoch.
// In a running job it stands before workers of higher ranks, because an epoch
// lists its workers by rank. At the start of the job the order of joining
// counts, see NumberWorkers.
void MemberList::Add(const JoinRequest& request, SessionId session,
                     bool running, absl::Time now) {
  MemberRecord member;
  member.id = PeerId::Shard(request.shard);
  if (request.role == Role::kWorker) {
    int rank = running ? next_rank_ : 0;
    while (Find(PeerId::Worker(rank)) != nullptr) ++rank;
    member.id = PeerId::Worker(rank);
  }
  member.request = request;
  member.session = session;
  member.times.last_message_at = now;
  member.times.heard_at = now;
  member.times.notified_at = absl::InfinitePast();
  const auto place = absl::c_find_if(members_, [&](const MemberRecord& other) {
    return running && member.is_worker() && other.is_worker() &&
           other.id.rank > member.id.rank;
  });
  members_.insert(place, std::move(member));
}

void MemberList::UseRanks() {
  for (const MemberRecord& member : members_) {
    if (member.is_worker()) {
      next_rank_ = std::max(next_rank_, member.id.rank + 1);
    }
  }
}

void MemberList::Remove(PeerId id) {
  std::erase_if(members_,
                [&](const MemberRecord& member) { return member.id == id; });
}

// Workers come first, so that their hosts have the first numbers.
void MemberList::NumberHosts(HostTable& hosts, CoordinatorOutbox& out) {
  std::set<uint64_t> incarnations;
  for (const MemberRecord& member : members_) {
    incarnations.insert(member.request.incarnation);
  }
  hosts.KeepSplits(incarnations);
  for (const Role role : {Role::kWorker, Role::kShard}) {
    for (MemberRecord& member : members_) {
      if (member.id.role != role) continue;
      HostTable::Numbered numbered = hosts.NumberOf(member.request);
      member.host = numbered.host;
      if (numbered.news.empty()) continue;
      out.push_back(
          Announce{true, std::move(numbered.news), {LogEvent::kHosts}});
    }
  }
}

bool MemberList::HaveLaunchRanks() const {
  std::set<int32_t> ranks;
  for (const MemberRecord& member : members_) {
    if (!member.is_worker()) continue;
    const std::optional<int32_t>& rank = member.request.launch_rank;
    if (!rank.has_value() || !ranks.insert(*rank).second) return false;
  }
  return !ranks.empty();
}

void MemberList::NumberWorkers() {
  if (HaveLaunchRanks()) {
    // Servers keep their order, behind the workers.
    absl::c_stable_sort(
        members_, [](const MemberRecord& one, const MemberRecord& other) {
          if (!one.is_worker() || !other.is_worker()) {
            return one.is_worker() && !other.is_worker();
          }
          return *one.request.launch_rank < *other.request.launch_rank;
        });
  } else {
    GroupByHost();
  }
  next_rank_ = 0;
  for (MemberRecord& member : members_) {
    if (member.is_worker()) member.id = PeerId::Worker(next_rank_++);
  }
}

// A group has the workers of one host. A server, or a worker without a known
// host, is a group of its own. The key of a group in `groups` is the index of
// its first member in the list.
void MemberList::GroupByHost() {
  std::map<size_t, std::vector<MemberRecord>> groups;
  std::map<int32_t, size_t> group_of_host;
  for (size_t i = 0; i < members_.size(); ++i) {
    const int32_t host = members_[i].is_worker() ? members_[i].host : -1;
    const size_t group =
        host == -1 ? i : group_of_host.try_emplace(host, i).first->second;
    groups[group].push_back(std::move(members_[i]));
  }
  members_.clear();
  for (auto& [first, group] : groups) {
    for (MemberRecord& member : group) members_.push_back(std::move(member));
  }
}

void MemberList::AskAgain(absl::Time now) {
  for (MemberRecord& member : members_) {
    member.times.asked_at = std::max(member.times.asked_at, now);
  }
}

void MemberList::NoteGone(absl::Time now) {
  for (MemberRecord& member : members_) {
    const bool is_gone =
        !member.session.has_value() && now > member.times.dead_after;
    member.told_over = member.told_over || is_gone;
  }
}

absl::Duration MemberList::NoticePause(absl::Time now) {
  const absl::Duration pause = now - std::exchange(awake_at_, now);
  if (pause < kPauseMin) return absl::ZeroDuration();
  for (MemberRecord& member : members_) {
    member.times.heard_at += pause;
    member.times.dead_after += pause;
    member.times.asked_at += pause;
    member.times.moved_at += pause;
  }
  return pause;
}

int64_t MemberList::BegunStep(int64_t from) const {
  for (const MemberRecord& member : members_) {
    from = std::max(from, member.heartbeat.begun_step);
  }
  return from;
}

std::map<int32_t, std::string> MemberList::WorkerNames() const {
  std::map<int32_t, std::string> names;
  for (const MemberRecord& member : members_) {
    if (member.is_worker()) names[member.id.rank] = member.request.name;
  }
  return names;
}

std::map<int32_t, int32_t> MemberList::WorkerHosts() const {
  std::map<int32_t, int32_t> hosts;
  for (const MemberRecord& member : members_) {
    if (member.is_worker()) hosts[member.id.rank] = member.host;
  }
  return hosts;
}

int MemberList::WorkerHostsHere() const {
  std::set<int32_t> hosts;
  int own = 0;  // Workers whose host has no number: a host of their own.
  for (const MemberRecord& member : members_) {
    if (!member.is_worker() || member.has_left()) continue;
    if (member.host < 0) {
      ++own;
    } else {
      hosts.insert(member.host);
    }
  }
  const int count = own + static_cast<int>(hosts.size());
  return count == WorkersHere() ? 0 : count;
}

std::optional<TurnRule> MemberList::FirstTurns() const {
  std::optional<TurnRule> first;
  for (const MemberRecord& member : members_) {
    const std::optional<double> base = member.request.turn_base;
    if (!base.has_value()) continue;
    if (!first.has_value() || *base > first->base) first = TurnRule{*base};
  }
  return first;
}

void MemberList::TellWorkers(const CoordinatorMessage& message,
                             CoordinatorOutbox& out) const {
  for (const MemberRecord& member : members_) {
    if (member.is_worker()) member.Send(message, out);
  }
}

void MemberList::EndForAll(const JobOver& over, CoordinatorOutbox& out) {
  for (MemberRecord& member : members_) {
    if (!member.session.has_value()) continue;
    member.told_over = true;
    TellOver(*member.session, over, out);
  }
}

std::vector<Setting> WorkerSettings(const MemberList& roster) {
  for (const MemberRecord& member : roster.members()) {
    if (member.is_worker()) return member.request.settings;
  }
  return {};
}

bool DropGone(MemberList& roster) {
  const auto is_gone = [](const MemberRecord& member) {
    return member.is_worker() && member.told_over;
  };
  std::vector<MemberRecord>& members = roster.members();
  if (absl::c_count_if(members, is_gone) == roster.Count(Role::kWorker)) {
    return false;
  }
  std::erase_if(members, is_gone);
  return true;
}

}  // namespace nereus
