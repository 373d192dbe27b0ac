// OnChecksums sorts the reports of a round into groups of equal reports. With
// more than one group, Settle decides when the error is due, and Difference
// writes it.

#include "server/coordinator/replica_check.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/protocol/replica_sample.h"

namespace nereus {
namespace {

// Number of rounds of a kind that are kept. Few are needed: workers are only a
// few steps apart, and samples and checkpoints are many steps apart.
constexpr int64_t kRoundsMax = 8;

// Largest number of reports of one round that differ and are kept.
constexpr size_t kGroupsMax = 8;

// Largest number of workers that a message names one by one.
constexpr size_t kNamesMax = 4;

// Returns "worker a", "worker a and worker b" or "worker a, ..., and 7 more".
std::string Listed(std::vector<std::string> names) {
  if (names.size() == 1) return names.front();
  std::string last = names.back();
  if (names.size() > kNamesMax) {
    last = absl::StrCat(names.size() - kNamesMax, " more");
    names.resize(kNamesMax + 1);
  }
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " and ", last);
}

std::vector<std::string> NamesOf(
    const std::map<int32_t, std::string>& reporters) {
  std::vector<std::string> names;
  for (const auto& [rank, name] : reporters) names.push_back(name);
  return names;
}

std::string Hex(uint32_t checksum) {
  return absl::StrCat(absl::Hex(checksum, absl::kZeroPad8));
}

std::string Advice(const Job& job) {
  return job.options.optimizer_place == OptimizerPlace::kWorker
             ? ". Do all workers run the same optimizer, and give its state to "
               "those that join (LayerBinding::state)? Does a program change "
               "parameters on one worker only?"
             : ". Does a worker change parameters that the servers update?";
}

}  // namespace

int64_t ReplicaCheck::Round::reports() const {
  int64_t count = 0;
  for (const Group& group : groups) count += std::ssize(group.reporters);
  return count;
}

absl::StatusOr<std::optional<Announce>> ReplicaCheck::OnChecksums(
    const MemberRecord& member, const ReplicaChecksums& checksums,
    const Job& job, absl::Time now) {
  if (!member.is_worker() || checksums.epoch != job.epoch) return std::nullopt;
  const auto layers = static_cast<int>(job.model().size());
  const bool is_sample = checksums.is_sample;
  const int expected =
      is_sample ? SampledLayersOf(checksums.round, layers).count : layers;
  if (std::ssize(checksums.layers) != expected || checksums.round < 0 ||
      checksums.round > kStepMax) {
    return InvalidArgumentError(
        member.Name(), " reports ", checksums.layers.size(),
        is_sample ? " checksums of a sample" : " checksums", " as of round ",
        checksums.round, ", the model has ", layers, " layers",
        expected != layers ? absl::StrCat(", a sample ", expected) : "");
  }
  Round& round = rounds_[{is_sample, checksums.round}];
  std::vector<Group>& groups = round.groups;
  const int32_t rank = member.id.rank;
  if (absl::c_any_of(groups, [&](const Group& group) {
        return group.reporters.contains(rank);
      })) {
    return std::nullopt;
  }
  auto same = absl::c_find_if(groups, [&](const Group& group) {
    return group.layers == checksums.layers;
  });
  if (same == groups.end()) {
    if (groups.size() == 1) round.differs_at = now;
    same = groups.insert(groups.end(), Group{checksums.layers, {}});
  }
  same->reporters.emplace(rank, member.Name());
  const bool is_whole = round.reports() >= job.worker_count();
  if (groups.size() > 1 && (is_whole || groups.size() >= kGroupsMax)) {
    return Difference(*rounds_.find({is_sample, checksums.round}), job);
  }
  return ForgetOldest(is_sample, job);
}

std::optional<Announce> ReplicaCheck::Settle(absl::Time now,
                                             const Job& job) const {
  for (const auto& each : rounds_) {
    if (each.second.groups.size() > 1 &&
        now - each.second.differs_at >= kOthersWait) {
      return Difference(each, job);
    }
  }
  return std::nullopt;
}

std::optional<Announce> ReplicaCheck::ForgetOldest(bool is_sample,
                                                   const Job& job) {
  const auto begin = rounds_.lower_bound({is_sample, 0});
  const auto end = rounds_.upper_bound({is_sample, kStepMax});
  if (std::distance(begin, end) <= kRoundsMax) return std::nullopt;
  std::optional<Announce> reason;
  if (begin->second.groups.size() > 1) reason = Difference(*begin, job);
  rounds_.erase(begin);
  return reason;
}

// Compares with the largest group. If that has most of the reports, all others
// deviate; otherwise no worker is more likely to be right than another one.
Announce ReplicaCheck::Difference(Rounds::const_reference round,
                                  const Job& job) {
  const auto& [key, reports] = round;
  const auto& [is_sample, number] = key;
  const auto largest =
      absl::c_max_element(reports.groups, [](const Group& a, const Group& b) {
        return a.reporters.size() < b.reporters.size();
      });
  // The first layer in which any report differs from the largest group, and
  // the first group that differs in it.
  size_t layer = largest->layers.size();
  auto differs = reports.groups.end();
  std::map<int32_t, std::string> others;
  for (auto group = reports.groups.begin(); group != reports.groups.end();
       ++group) {
    if (group == largest) continue;
    others.insert(group->reporters.begin(), group->reporters.end());
    const auto found = absl::c_mismatch(largest->layers, group->layers);
    const auto index =
        static_cast<size_t>(found.first - largest->layers.begin());
    if (index >= layer) continue;
    layer = index;
    differs = group;
  }
  const int first =
      is_sample
          ? SampledLayersOf(number, static_cast<int>(job.model().size())).first
          : 0;
  const bool is_most = 2 * std::ssize(largest->reporters) > reports.reports();
  std::string text = absl::StrCat("have checksum ", Hex(largest->layers[layer]),
                                  " on ", Listed(NamesOf(largest->reporters)),
                                  " and ", Hex(differs->layers[layer]), " on ",
                                  Listed(NamesOf(differs->reporters)));
  if (is_most) {
    absl::StrAppend(&text, ": ", Listed(NamesOf(others)),
                    others.size() > 1 ? " deviate" : " deviates",
                    " from the other workers");
  }
  const std::string& name = job.layers[first + layer].name;
  return {true,
          absl::StrCat("replicas differ after step ", number, ": ",
                       is_sample ? "sampled parameters" : "the parameters",
                       " of layer ", name, " ", text, Advice(job)),
          {LogEvent::kReplicas, number, name}};
}

}  // namespace nereus
