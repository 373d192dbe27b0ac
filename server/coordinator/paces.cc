#include "server/coordinator/paces.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"

namespace nereus {
namespace {

// Shares of a step. A member that is late by less is not late: computing times,
// and the shares of links that are alike, vary by as much.
constexpr double kLateByComputing = 0.1;
constexpr double kLateByLink = 0.3;

// Time of which the activities of a member must tell before its pace is known.
constexpr absl::Duration kPaceAfter = absl::Seconds(5);

// Shortest time between two activities that are kept: a member that sends more
// heartbeats than it must cannot fill the memory.
constexpr absl::Duration kNoteInterval = absl::Milliseconds(500);

// Largest number of members that are blamed for slow links at a time. It bounds
// the time of an update.
constexpr size_t kSlowLinksMax = 8;

// Mean of shares of links.
class MeanShare {
 public:
  void Add(double share) {
    sum_ += share;
    ++links_;
  }
  int links() const { return links_; }
  double mean() const { return sum_ / links_; }

 private:
  double sum_ = 0;
  int links_ = 0;
};

}  // namespace

void Paces::Note(PeerId member, uint64_t process, const Activity& activity,
                 absl::Time now) {
  Record& record = members_[member];
  if (record.process != process) {
    record = Record();
    record.process = process;
  }
  auto& activities = record.activities;
  if (!activities.empty() && now - activities.back().first < kNoteInterval) {
    return;
  }
  activities.emplace_back(now, activity);
  while (now - activities.front().first > kRateWindow) activities.pop_front();
}

std::optional<Pace> Paces::OwnPace(const Record& record) {
  if (record.activities.empty() ||
      record.activities.back().first - record.activities.front().first <
          kPaceAfter) {
    return std::nullopt;
  }
  const Activity& first = record.activities.front().second;
  const Activity& last = record.activities.back().second;
  Pace pace;
  pace.busiest = last.busiest;
  MeanShare busy;  // Mean over the window, because an interval may be quiet.
  for (const auto& [at, activity] : record.activities) {
    if (activity.busiest.has_value()) busy.Add(activity.busiest->share);
  }
  if (busy.links() > 0) pace.link_share = busy.mean();
  const int64_t steps = last.steps - first.steps;
  if (steps <= 0) return pace;
  const auto mean = [&](absl::Duration PhaseTimes::*time) {
    return (last.times.*time - first.times.*time) / steps;
  };
  pace.step = {mean(&PhaseTimes::forward), mean(&PhaseTimes::backward),
               mean(&PhaseTimes::other), mean(&PhaseTimes::waiting),
               mean(&PhaseTimes::turn)};
  return pace;
}

template <typename Field>
auto Paces::Median(Role role, Field field) const {
  std::vector<decltype(field(Pace()))> values;
  for (const auto& [id, record] : members_) {
    if (id.role == role && record.pace.has_value()) {
      values.push_back(field(*record.pace));
    }
  }
  if (values.empty()) return field(Pace());
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Each member tells of its busiest link. A normal link of a worker is as busy
// as the lower quartile of the shares of workers, and one of a server as that
// of servers: the sides of one connection differ. For example, if all workers
// send to one server, its link holds up all that they send, and nothing that it
// sends. What exceeds a normal link is the member's own fault as far as its
// other links exceed it, too, and otherwise the peer's. If the member has no
// other link to compare with, both are suspected. The member with the highest
// mean is then blamed, and its peers are no longer suspected because of it.
std::map<PeerId, double> Paces::FindSlowLinks() const {
  std::vector<std::pair<PeerId, BusyLink>> links;
  std::map<Role, std::vector<double>> shares;
  for (const auto& [id, record] : members_) {
    for (const auto& [at, activity] : record.activities) {
      if (!activity.busiest.has_value()) continue;
      links.emplace_back(id, *activity.busiest);
      shares[id.role].push_back(activity.busiest->share);
      if (activity.busiest->others.has_value()) {
        shares[id.role].push_back(*activity.busiest->others);
      }
    }
  }
  if (links.empty()) return {};
  std::map<Role, double> normal;
  for (auto& [role, of_role] : shares) {
    const auto quartile = of_role.begin() + (std::ssize(of_role) - 1) / 4;
    std::nth_element(of_role.begin(), quartile, of_role.end());
    normal[role] = *quartile;
  }

  std::map<PeerId, double> slow;
  while (slow.size() < kSlowLinksMax) {
    std::map<PeerId, MeanShare> blames;
    for (const auto& [id, link] : links) {
      const double usual = normal[id.role];
      const double excess = std::max(0.0, link.share - usual);
      const bool is_own = !link.others.has_value();
      const double own =
          is_own ? excess : std::clamp(*link.others - usual, 0.0, excess);
      const double of_peer = is_own ? excess : excess - own;
      blames[id].Add(is_own && slow.count(link.peer) > 0 ? 0 : own);
      blames[link.peer].Add(is_own && slow.count(id) > 0 ? 0 : of_peer);
    }
    const auto worst =
        absl::c_max_element(blames, [&](const auto& a, const auto& b) {
          return std::pair(slow.count(a.first) == 0, a.second.mean()) <
                 std::pair(slow.count(b.first) == 0, b.second.mean());
        });
    if (slow.count(worst->first) > 0 ||
        worst->second.mean() <
            std::max(kLateByLink, normal[worst->first.role])) {
      break;
    }
    slow[worst->first] = worst->second.mean();
  }
  return slow;
}

// If the workers hardly wait, a slow link is hidden behind computing.
void Paces::FindLate(absl::Duration step) {
  const std::map<PeerId, double> slow_links = FindSlowLinks();
  const absl::Duration computing = Median(
      Role::kWorker, [](const Pace& pace) { return pace.step.computing(); });
  absl::Duration waiting;
  for (const auto& [id, record] : members_) {
    if (!record.pace.has_value()) continue;
    waiting = std::max(waiting, record.pace->step.waiting);
  }
  for (auto& [id, record] : members_) {
    if (!record.pace.has_value()) continue;
    Pace& pace = *record.pace;
    const auto link = slow_links.find(id);
    const absl::Duration by_link =
        link == slow_links.end() ? absl::ZeroDuration() : link->second * step;
    const absl::Duration by_computing = id.role == Role::kWorker
                                            ? pace.step.computing() - computing
                                            : absl::ZeroDuration();
    const absl::Duration late =
        std::min(std::max(by_computing, by_link), waiting);
    if (late < kLateByComputing * step) continue;
    pace.late = late;
    pace.cause =
        by_computing >= by_link ? LateCause::kComputing : LateCause::kLink;
    if (pace.cause == LateCause::kLink) {
      pace.link_share = std::max(pace.link_share, link->second);
    }
  }
}

void Paces::Update(absl::Time now) {
  for (auto& [id, record] : members_) {
    auto& activities = record.activities;
    while (!activities.empty() &&
           now - activities.front().first > kRateWindow) {
      activities.pop_front();
    }
    record.pace = OwnPace(record);
  }
  const absl::Duration step =
      Median(Role::kWorker, [](const Pace& pace) { return pace.step.total(); });
  const absl::Duration passed = now - std::exchange(updated_at_, now);
  if (step == absl::ZeroDuration()) return;
  FindLate(step);
  if (passed == absl::InfiniteDuration()) return;
  for (auto& [id, record] : members_) {
    if (!record.pace.has_value()) continue;
    record.late_total += record.pace->late * absl::FDivDuration(passed, step);
  }
}

std::optional<Pace> Paces::PaceOf(PeerId member) const {
  const auto found = members_.find(member);
  return found == members_.end() ? std::nullopt : found->second.pace;
}

absl::Duration Paces::LateTotal(PeerId member) const {
  const auto found = members_.find(member);
  return found == members_.end() ? absl::ZeroDuration()
                                 : found->second.late_total;
}

}  // namespace nereus
