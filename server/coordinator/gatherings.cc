#include "server/coordinator/gatherings.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

// Bytes of all values of an answer, of which the coordinator sends a copy to
// each worker.
constexpr size_t kAnswerBytesMax = size_t{2} << 20;
// Number of answers before the first step that are kept for later workers.
constexpr int32_t kFirstAnswersMax = 64;

}  // namespace

Gatherings::Workers Gatherings::WorkersOf(const Job& job,
                                          const MemberList& roster) {
  Workers workers;
  for (const MemberRecord& member : roster.members()) {
    if (!member.is_worker()) continue;
    const int position = job.PositionOf(member.id.rank);
    if (position < 0) continue;
    workers[member.id.rank] = {&member, job.workers[position].first_step};
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
                          CoordinatorOutbox& out) {
  const GatheringId& id = gather.id;
  const std::vector<Gathered>& first = state_.first;
  if (id.step == kInitialRound &&
      id.index < static_cast<int32_t>(first.size())) {
    return worker.Send(first[id.index], out);
  }
  const std::optional<Gathered>& newest = state_.newest;
  if (newest.has_value() && newest->id == id) return worker.Send(*newest, out);
  // The worker has the answer: it sent this again before that arrived.
  if (newest.has_value() && id.step != kInitialRound && id < newest->id) return;
  open_[worker.id.rank] = gather;
}

bool Gatherings::Complete(const Job& job, const MemberList& roster) {
  if (open_.empty()) return false;
  const Workers workers = WorkersOf(job, roster);
  std::erase_if(
      open_, [&](const auto& entry) { return !workers.contains(entry.first); });
  std::set<GatheringId> ids;
  for (const auto& [rank, gather] : open_) ids.insert(gather.id);
  bool keeps = false;
  for (const GatheringId& id : ids) {
    std::optional<Gathered> answer = Answer(id, workers);
    if (!answer.has_value()) continue;
    std::vector<int> ranks;
    for (const auto& [rank, gather] : open_) {
      if (gather.id == id) ranks.push_back(rank);
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

void Gatherings::Clear() {
  open_.clear();
  state_.newest.reset();
}

std::optional<Gathered> Gatherings::Answer(const GatheringId& id,
                                           const Workers& workers) const {
  const bool is_first = id.step == kInitialRound;
  std::set<int64_t> starts;  // First steps of the workers that gather.
  for (const auto& [rank, worker] : workers) {
    if (IsOpen(rank, id)) starts.insert(worker.first_step);
  }
  Gathered answer;
  answer.id = id;
  std::vector<int> needed;
  for (const auto& [rank, worker] : workers) {
    const bool takes_part = is_first ? starts.contains(worker.first_step)
                                     : worker.first_step <= id.step;
    if (!takes_part || worker.member->has_left()) continue;
    needed.push_back(rank);
    if (IsOpen(rank, id)) continue;
    const int64_t begun = worker.member->heartbeat.begun_step;
    if (begun < (is_first ? worker.first_step : id.step + 1)) {
      return std::nullopt;
    }
    answer.error = absl::StrCat(
        worker.member->Name(), " has begun step ", begun,
        " and did not gather ",
        is_first ? "before its first step"
                 : absl::StrCat("after step ", id.step),
        ": all workers must gather equally often between two steps");
    return answer;
  }
  size_t bytes = 0;
  for (const int rank : needed) bytes += open_.at(rank).value.size();
  if (bytes > kAnswerBytesMax) {
    answer.error =
        absl::StrCat("the values of ", needed.size(), " workers have ", bytes,
                     " bytes, must be at most ", kAnswerBytesMax);
    return answer;
  }
  for (const int rank : needed) answer.values.push_back(open_.at(rank).value);
  return answer;
}

void Gatherings::Keep(const Gathered& answer) {
  const bool is_next_first =
      answer.id.step == kInitialRound &&
      answer.id.index == static_cast<int32_t>(state_.first.size()) &&
      answer.id.index < kFirstAnswersMax;
  if (is_next_first) {
    state_.first.push_back(answer);
  } else {
    state_.newest = answer;
  }
}

}  // namespace nereus
