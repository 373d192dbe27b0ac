#include "server/coordinator/recovery_log.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace nereus {
namespace {

// Returns a clause for the line, "; A, B" followed by `what`; "" if there are
// no names.
std::string Clause(const std::vector<std::string>& names,
                   absl::string_view what) {
  if (names.empty()) return "";
  return absl::StrCat("; ", absl::StrJoin(names, ", "), what);
}

}  // namespace

void RecoveryLog::NoteLost(const MemberRecord& member) {
  lost_.try_emplace(member.Name(), member.times.last_message_at);
  gone_.insert(member.Name());
}

// Names a lost connection only if both of its ends stayed members. Otherwise
// the line explains the loss by naming the lost member.
std::string RecoveryLog::OnEpoch(const EpochInForce& epoch,
                                 const MemberList& roster, bool was_restarted,
                                 int64_t begun_step, int workers, int shards,
                                 absl::Time now) {
  const Job& job = *epoch.job;
  std::vector<std::string> back;
  if (was_restarted) back.push_back("the coordinator");
  for (const MemberRecord& member : roster.members()) {
    const bool joins = !member.admitted;
    if (joins && gone_.erase(member.Name()) > 0) back.push_back(member.Name());
  }
  const auto lost = std::exchange(lost_, {});
  const auto stayed = [&](const MemberRecord* member) {
    return member != nullptr && lost.count(member->Name()) == 0 &&
           absl::c_count(back, member->Name()) == 0;
  };
  const std::set<PeerPair> split = std::exchange(split_, {});
  std::vector<std::string> links;
  std::vector<std::string> hosts;
  for (const PeerPair& link : epoch.broken_links) {
    const MemberRecord* const first = roster.Find(link.first);
    const MemberRecord* const second = roster.Find(link.second);
    if (!stayed(first) || !stayed(second)) continue;
    (split.contains(link) ? hosts : links)
        .push_back(absl::StrCat(first->Name(), " and ", second->Name()));
  }
  if (lost.empty() && back.empty() && links.empty() && hosts.empty()) return "";
  std::string text = absl::StrCat("epoch ", job.epoch, ": the job goes on");
  if (!lost.empty()) {
    std::vector<std::string> names;
    absl::Time first = now;
    for (const auto& [name, heard_at] : lost) {
      names.push_back(name);
      first = std::min(first, heard_at);
    }
    absl::StrAppendFormat(&text, " %.1f s after it heard from %s last",
                          absl::ToDoubleSeconds(now - first),
                          absl::StrJoin(names, ", "));
  }
  text += Clause(back, back.size() == 1 ? " is back" : " are back");
  text += Clause(links, " lost their connection, and make another");
  text += Clause(hosts, " could not connect, and are two hosts");
  // A job may have more workers than it began with.
  const int here = job.worker_count();
  absl::StrAppend(
      &text, "; ", here, here <= workers ? absl::StrCat(" of ", workers) : "",
      " workers, ", roster.Count(Role::kShard), " of ", shards, " servers; ");
  const int64_t next = job.history.first_step;
  if (!epoch.all_from_base) {
    return absl::StrCat(text, "no step is lost, step ", next, " is next");
  }
  const int64_t again = std::max<int64_t>(0, begun_step - next + 1);
  return absl::StrCat(text, "back to the checkpoint of round ",
                      job.history.base_round, ": step ", next, " is next, ",
                      again, again == 1 ? " step is" : " steps are",
                      " done again");
}

}  // namespace nereus
