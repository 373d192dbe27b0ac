#include "server/coordinator/gatherings.h"

#include <set>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nereus {
namespace {

// Limit in bytes of all values of an answer together. The coordinator sends a
// copy of the answer to each worker.
constexpr size_t kAnswerBytesMax = size_t{2} << 20;
// Largest number of answers before the first step. All are kept, for workers
// that join later; a further gathering fails.
constexpr int32_t kFirstAnswersMax = 64;

// Time between two notices that tell a waiting worker which workers are
// missing, and before the first notice.
const absl::Duration kNoticeInterval = absl::Seconds(5);
// Largest number of workers that a notice names.
constexpr size_t kNamesMax = 8;

// Returns the time of a gathering in words.
std::string When(const GatheringId& id) {
  if (id.step != kInitialRound) return absl::StrCat("after step ", id.step);
  return id.went_back_in == 0 ? "before the first step"
                              : "before the first step after going back";
}

// True for a gathering of workers that begin, before their first step.
bool IsFirst(const GatheringId& id) {
  return id.step == kInitialRound && id.went_back_in == 0;
}

// Returns "" if no worker is missing: the value is of a step that the job has
// undone.
std::string DescribeWait(const GatheringId& id,
                         const std::vector<const MemberRecord*>& missing) {
  if (missing.empty()) return "";
  std::vector<std::string> names;
  for (const MemberRecord* const member : missing) {
    if (names.size() == kNamesMax) {
      names.push_back("others");
      break;
    }
    names.push_back(member->Describe());
  }
  return absl::StrCat("the gathering ", When(id), " waits for ",
                      absl::StrJoin(names, ", "));
}

}  // namespace

Gatherings::Workers Gatherings::WorkersOf(const Job& job,
                                          const MemberList& roster) {
  Workers workers;
  for (const MemberRecord& member : roster.members()) {
    if (!member.is_worker()) continue;
    if (job.PositionOf(member.id.rank) < 0) continue;
    workers[member.id.rank] = &member;
  }
  return workers;
}

absl::Status Gatherings::Check(const Gather& gather) {
  const auto bytes = static_cast<int64_t>(gather.value.size());
  if (bytes <= kGatheredBytesMax) return absl::OkStatus();
  return InvalidArgumentError("it gathers a value of ", bytes,
                              " bytes, must be at most ", kGatheredBytesMax);
}

void Gatherings::OnGather(const MemberRecord& worker, const Gather& gather,
                          absl::Time now, CoordinatorOutbox& out) {
  if (worker.heartbeat.epoch < cleared_in_) return;
  const GatheringId& id = gather.id;
  const std::vector<Gathered>& first = state_.first;
  if (IsFirst(id) && id.index < static_cast<int32_t>(first.size())) {
    return worker.Send(first[id.index], out);
  }
  const std::optional<Gathered>& newest = state_.newest;
  if (newest.has_value() && newest->id == id) return worker.Send(*newest, out);
  // Drops a repeated value: the worker sent it before the answer arrived, and
  // has the answer by now.
  if (newest.has_value() && id.step != kInitialRound && id < newest->id) return;
  if (IsFirst(id) && id.index >= kFirstAnswersMax) {
    const std::string why = absl::StrCat(
        "a worker gathers more than ", kFirstAnswersMax,
        " times before its first step: workers that join later could not");
    return worker.Send(Gathered{id, {}, why}, out);
  }
  if (IsOpen(worker.id.rank, id)) return;
  open_[worker.id.rank] = {gather, now};
}

bool Gatherings::Complete(const Job& job, const MemberList& roster) {
  if (open_.empty()) return false;
  const Workers workers = WorkersOf(job, roster);
  std::erase_if(
      open_, [&](const auto& entry) { return !workers.contains(entry.first); });
  std::set<GatheringId> ids;
  for (const auto& [rank, open] : open_) ids.insert(open.gather.id);
  bool keeps = false;
  for (const GatheringId& id : ids) {
    std::optional<Gathered> answer = Answer(id, workers);
    if (!answer.has_value()) continue;
    std::vector<int> ranks;
    for (const auto& [rank, open] : open_) {
      if (open.gather.id == id) ranks.push_back(rank);
    }
    for (const int rank : ranks) open_.erase(rank);
    if (answer->error.empty()) {
      Keep(*answer);
      keeps = true;
    }
    ready_.emplace_back(*std::move(answer), std::move(ranks));
  }
  return keeps;
}

void Gatherings::Send(const MemberList& roster, CoordinatorOutbox& out) {
  for (const auto& [answer, ranks] : ready_) {
    for (const int rank : ranks) {
      roster.Find(PeerId::Worker(rank))->Send(answer, out);
    }
  }
  ready_.clear();
}

void Gatherings::Clear(uint64_t epoch) {
  cleared_in_ = epoch;
  open_.clear();
  state_.newest.reset();
}

Gatherings::Needs Gatherings::NeedsOf(const GatheringId& id,
                                      const Workers& workers) const {
  std::set<int64_t> starts;  // First steps of the workers that gather.
  for (const auto& [rank, worker] : workers) {
    if (IsOpen(rank, id)) starts.insert(worker->life.first_step);
  }
  const auto takes_part = [&](const MemberRecord& worker) {
    const int64_t first_step = worker.life.first_step;
    if (id.step != kInitialRound) return first_step <= id.step;
    const Heartbeat& heartbeat = worker.heartbeat;
    // Whether the worker goes back, too, is not known yet.
    if (heartbeat.epoch < id.went_back_in) return true;
    return heartbeat.went_back_in == id.went_back_in &&
           (id.went_back_in > 0 || starts.contains(first_step));
  };
  Needs needs;
  for (const auto& [rank, worker] : workers) {
    if (!takes_part(*worker) || worker->has_left()) continue;
    if (IsOpen(rank, id)) {
      needs.here.push_back(rank);
      continue;
    }
    needs.missing.push_back(worker);
    // A heartbeat from before the worker dropped its values says nothing.
    const Heartbeat& heartbeat = worker->heartbeat;
    if (heartbeat.epoch >= cleared_in_ &&
        heartbeat.epoch >= worker->life.epoch &&
        heartbeat.pushed_step > id.step) {
      needs.gone_on = worker;
    }
  }
  return needs;
}

std::optional<Gathered> Gatherings::Answer(const GatheringId& id,
                                           const Workers& workers) const {
  Needs needs = NeedsOf(id, workers);
  Gathered answer;
  answer.id = id;
  if (needs.gone_on != nullptr) {
    answer.error = absl::StrCat(
        needs.gone_on->Name(), " has pushed step ",
        needs.gone_on->heartbeat.pushed_step, " and did not gather ", When(id),
        ": all workers must gather equally often between two steps");
    return answer;
  }
  // `here` is empty if the value is of a step that the job has undone, and its
  // worker does not know this yet. The value then waits.
  if (!needs.missing.empty() || needs.here.empty()) return std::nullopt;
  size_t bytes = 0;
  for (const int rank : needs.here) bytes += open_.at(rank).gather.value.size();
  if (bytes > kAnswerBytesMax) {
    answer.error =
        absl::StrCat("the values of ", needs.here.size(), " workers have ",
                     bytes, " bytes, must be at most ", kAnswerBytesMax);
    return answer;
  }
  for (const int rank : needs.here) {
    answer.values.push_back(open_.at(rank).gather.value);
  }
  return answer;
}

void Gatherings::SendNotices(const Job& job, const MemberList& roster,
                             absl::Time now, CoordinatorOutbox& out) {
  const auto is_due = [&](const auto& entry) {
    return now - entry.second.noticed_at > kNoticeInterval;
  };
  if (absl::c_none_of(open_, is_due)) return;
  const Workers workers = WorkersOf(job, roster);
  std::map<GatheringId, std::string> texts;
  for (auto& [rank, open] : open_) {
    const auto found = workers.find(rank);
    if (now - open.noticed_at <= kNoticeInterval || found == workers.end()) {
      continue;
    }
    open.noticed_at = now;
    const GatheringId& id = open.gather.id;
    const auto [text, is_new] = texts.emplace(id, "");
    if (is_new) text->second = DescribeWait(id, NeedsOf(id, workers).missing);
    if (text->second.empty()) continue;
    found->second->Send(Waiting{text->second}, out);
  }
}

void Gatherings::Keep(const Gathered& answer) {
  const bool is_next_first =
      IsFirst(answer.id) &&
      answer.id.index == static_cast<int32_t>(state_.first.size()) &&
      answer.id.index < kFirstAnswersMax;
  // Workers that join later may gather by themselves before their first push,
  // while other workers may still ask for the answer after a step.
  const bool is_for_all = answer.id.step != kInitialRound ||
                          !state_.newest.has_value() ||
                          state_.newest->id.step == kInitialRound;
  if (is_next_first) {
    state_.first.push_back(answer);
  } else if (is_for_all) {
    state_.newest = answer;
  }
}

}  // namespace nereus
