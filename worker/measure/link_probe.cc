#include "worker/measure/link_probe.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/types/span.h"
#include "common/protocol/frame.h"
#include "common/protocol/job.h"

namespace nereus {

namespace {

// Number of frames of a train of several small frames, and bounds for a train
// of large frames.
constexpr int kSeveralFrames = 16;
constexpr int kLargeFramesMin = 4;
constexpr int kLargeFramesMax = 32;
// Time below which a large train is too short to measure, in seconds.
constexpr double kAtOnceSeconds = 0.02;

// Time between trains after the first ones.
constexpr absl::Duration kInterval = absl::Seconds(1);

// Time after which the next train leaves although the last one is not answered.
// An answer never comes if an epoch ended meanwhile.
constexpr absl::Duration kPatience = absl::Seconds(10);

// Largest rate that is reported, in bytes per second.
constexpr double kRateMax = 1e12;

}  // namespace

LinkProbe::LinkProbe(size_t needed)
    : needed_(needed), large_frames_(kLargeFramesMin) {}

int LinkProbe::FramesOf(Kind kind) const {
  switch (kind) {
    case kOne:
      return 1;
    case kSeveral:
      return kSeveralFrames;
    case kLarge:
      break;
  }
  return large_frames_;
}

std::optional<LinkProbe::Train> LinkProbe::Next(absl::Time now) {
  if (under_way_ > 0 && now - sent_ < kPatience) return std::nullopt;
  const bool eager = next_id_ < static_cast<int64_t>(needed_) * kKinds;
  if (!eager && now - sent_ < kInterval) return std::nullopt;
  const Kind kind = static_cast<Kind>(next_id_ % kKinds);
  sent_ = now;
  under_way_ = FramesOf(kind);
  return Train{next_id_++, under_way_,
               kind == kLarge ? kFramePayloadBytesMax : 0};
}

void LinkProbe::OnAnswer(int64_t id, absl::Time now) {
  if (id != next_id_ - 1 || under_way_ == 0) return;
  const Kind kind = static_cast<Kind>(id % kKinds);
  std::deque<Sample>& samples = samples_[kind];
  samples.push_back({under_way_, absl::ToDoubleSeconds(now - sent_)});
  if (samples.size() > kKept) samples.pop_front();
  under_way_ = 0;
  if (kind != kLarge || samples.back().seconds > kAtOnceSeconds) return;
  large_frames_ = std::min(2 * large_frames_, kLargeFramesMax);
}

double LinkProbe::FastestOf(Kind kind) const {
  double fastest = samples_[kind].front().seconds;
  for (const Sample& sample : samples_[kind]) {
    fastest = std::min(fastest, sample.seconds);
  }
  return fastest;
}

bool LinkProbe::has_enough() const {
  return absl::c_all_of(samples_, [this](const auto& samples) {
    return samples.size() >= needed_;
  });
}

std::optional<double> LinkProbe::throughput() const {
  if (!has_enough()) return std::nullopt;
  double fastest = 0;
  for (const Sample& sample : samples_[kLarge]) {
    const double bytes =
        sample.frames * static_cast<double>(kFramePayloadBytesMax);
    fastest = std::max(fastest, bytes / sample.seconds);
  }
  return std::min(fastest, kRateMax);
}

std::optional<LinkSpeed> LinkProbe::speed() const {
  if (!has_enough()) return std::nullopt;
  // A train of one frame takes one latency in each direction.
  const double one = FastestOf(kOne);
  LinkSpeed speed;
  speed.latency = absl::Seconds(one / 2);
  const double message =
      std::max(0.0, FastestOf(kSeveral) - one) / (kSeveralFrames - 1);
  speed.message_time = absl::Seconds(message);
  for (const Sample& sample : samples_[kLarge]) {
    const double bytes =
        sample.frames * static_cast<double>(kFramePayloadBytesMax);
    // Time of the bytes alone: without the latency, and without the cost of
    // each further frame.
    const double carrying =
        sample.seconds - one - message * (sample.frames - 1);
    speed.rate =
        std::max(speed.rate, bytes / std::max(carrying, bytes / kRateMax));
  }
  return speed;
}

ProbePlan PlanProbes(const EpochStart& start) {
  const Job& job = *start.job;
  const int rank = start.self.rank;
  const Lineup& lineup = job.LineupOf(kStepMax);
  const int host = lineup.HostOf(rank);
  if (host < 0) return {};  // This worker has left.
  const absl::Span<const int32_t> local = lineup.at(host);
  const int index = lineup.LocalOf(rank);
  const auto local_workers = static_cast<int>(local.size());
  if (index == 1 && !job.partial()) {
    return {Probed::kMemory, PeerId::Worker(local[0]), local_workers};
  }
  if (index > 0) return {};
  const int32_t own = job.workers[job.PositionOf(rank)].host;
  std::vector<int32_t> near;
  std::vector<int32_t> far;
  for (const EpochMember& member : start.epoch_members) {
    if (member.id.role != Role::kShard) continue;
    const bool is_near = own >= 0 && member.host == own;
    (is_near ? near : far).push_back(member.id.rank);
  }
  // Hosts probe different servers, if there are enough.
  const std::vector<int32_t>& servers = far.empty() ? near : far;
  return {Probed::kLink, PeerId::Shard(servers[host % servers.size()]),
          local_workers};
}

}  // namespace nereus
