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
  std::erase_if(open_, [&](const auto& entry) {
    return roster.Find(PeerId::Worker(entry.first)) == nullptr;
  });
  std::set<GatheringId> ids;
  for (const auto& [rank, gather] : open_) ids.insert(gather.id);
  bool keeps = false;
  for (const GatheringId& id : ids) {
    std::optional<Gathered> answer = Answer(id, job, roster);
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
                                           const Job& job,
                                           const MemberList& roster) const {
  const bool is_first = id.step == kInitialRound;
  std::set<int64_t> starts;  // First steps of the workers that gather.
  for (const EpochWorker& worker : job.workers) {
    if (IsOpen(worker.rank, id)) starts.insert(worker.first_step);
  }
  Gathered answer;
  answer.id = id;
  size_t bytes = 0;
  for (const EpochWorker& worker : job.workers) {
    const MemberRecord* const member = roster.Find(PeerId::Worker(worker.rank));
    const bool takes_part = is_first ? starts.contains(worker.first_step)
                                     : worker.first_step <= id.step;
    if (member == nullptr || member->has_left() || !takes_part) continue;
    if (IsOpen(worker.rank, id)) {
      answer.values.push_back(open_.at(worker.rank).value);
      bytes += answer.values.back().size();
      continue;
    }
    const int64_t begun = member->heartbeat.begun_step;
    if (begun < (is_first ? worker.first_step : id.step + 1)) {
      return std::nullopt;
    }
    answer.error = absl::StrCat(
        member->Name(), " has begun step ", begun, " and did not gather ",
        is_first ? "before its first step"
                 : absl::StrCat("after step ", id.step),
        ": all workers must gather equally often between two steps");
  }
  if (bytes > kAnswerBytesMax) {
    answer.error =
        absl::StrCat("the values of ", answer.values.size(), " workers have ",
                     bytes, " bytes, must be at most ", kAnswerBytesMax);
  }
  if (!answer.error.empty()) answer.values.clear();
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
