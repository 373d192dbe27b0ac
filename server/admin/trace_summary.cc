#include "server/admin/trace_summary.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/algorithm/container.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Sums over all steps of one worker.
struct Sums {
  PhaseTimes times;
  std::map<int32_t, absl::Duration> backward;  // Times by layer.
  std::map<int32_t, absl::Duration> waited;
  std::set<int64_t> steps;
};

Sums SumsOf(const MemberTrace& worker) {
  Sums sums;
  for (const Span& span : worker.spans) {
    const absl::Duration time = span.end - span.begin;
    if (span.kind == SpanKind::kForward) {
      sums.times.forward += time;
      sums.steps.insert(span.round);
    } else if (span.kind == SpanKind::kBackward) {
      sums.times.backward += time;
      sums.backward[span.layer] += time;
    } else if (span.kind == SpanKind::kOther) {
      sums.times.other += time;
    } else if (span.kind == SpanKind::kWait) {
      sums.times.waiting += time;
      if (span.layer >= 0) sums.waited[span.layer] += time;
    } else if (span.kind == SpanKind::kTurn) {
      sums.times.turn += time;
    }
  }
  return sums;
}

// Makes each layer's time at least that of a worker with these sums.
void AddTimes(const Sums& sums, const std::vector<LayerSpec>& layers,
              std::vector<LayerTime>& times) {
  const auto steps = static_cast<int64_t>(sums.steps.size());
  const std::vector<LayerTime> forward = SplitCompute(
      layers, std::min(sums.times.forward / steps, kComputeTimeMax),
      /*backward_share=*/0);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    times[layer].forward =
        std::max(times[layer].forward, forward[layer].forward);
    const auto found = sums.backward.find(static_cast<int32_t>(layer));
    if (found == sums.backward.end()) continue;
    times[layer].backward =
        std::max(times[layer].backward,
                 std::min(found->second / steps, kComputeTimeMax));
  }
}

}  // namespace

absl::StatusOr<TraceSummary> Summarise(const JobTrace& trace) {
  const auto model = trace.job->model();
  const std::vector<LayerSpec> layers(model.begin(), model.end());
  TraceSummary summary;
  summary.times.resize(layers.size());
  std::map<int32_t, absl::Duration> waited;
  for (const MemberTrace& member : trace.members) {
    if (member.member.role != Role::kWorker) continue;
    const Sums sums = SumsOf(member);
    if (sums.steps.empty()) continue;
    const auto steps = static_cast<int64_t>(sums.steps.size());
    summary.workers.push_back(
        {member.name,
         {sums.times.forward / steps, sums.times.backward / steps,
          sums.times.other / steps, sums.times.waiting / steps,
          sums.times.turn / steps}});
    for (const auto& [layer, time] : sums.waited) waited[layer] += time / steps;
    AddTimes(sums, layers, summary.times);
  }
  if (summary.workers.empty()) {
    return DataLossError("the trace has no whole step of a worker");
  }
  const auto count = static_cast<int64_t>(summary.workers.size());
  std::vector<absl::Duration> computing;
  for (const TraceSummary::Worker& worker : summary.workers) {
    summary.step += worker.step.total() / count;
    computing.push_back(worker.step.computing());
  }
  const auto slowest = absl::c_max_element(computing);
  summary.slowest = static_cast<int>(slowest - computing.begin());
  const absl::Duration longest = *slowest;
  // The smaller one of two in the middle: with two workers, one can be late.
  const auto middle = computing.begin() + (count - 1) / 2;
  std::nth_element(computing.begin(), middle, computing.end());
  summary.computing = *middle;
  summary.late = longest - summary.computing;
  for (const auto& [layer, time] : waited) {
    if (layer >= std::ssize(trace.job->layers)) continue;
    summary.layers.push_back({layer, time / count});
  }
  absl::c_stable_sort(summary.layers, [](const auto& a, const auto& b) {
    return a.waited > b.waited;
  });
  return summary;
}

}  // namespace nereus
