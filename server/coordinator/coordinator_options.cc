#include "server/coordinator/coordinator_options.h"

#include <algorithm>
#include <array>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "common/base/printable.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Limit in bytes of a name, address or setting of a member: logs repeat it.
constexpr size_t kNameBytesMax = 256;
// Manifests of checkpoints keep the settings of the workers.
static_assert(kNameBytesMax == kSettingBytesMax);

// Limit in bytes of the text that says what a stalled round waits for.
constexpr size_t kStallBytesMax = 4096;

// Limit of the times of an activity. Sums of them are then finite.
constexpr absl::Duration kActivityMax = absl::Hours(24 * 365 * 100);

// Checks that sums of activities are finite, and that shares are shares.
absl::Status CheckActivity(const Activity& activity) {
  const auto is_share = [](double share) { return share >= 0 && share <= 1; };
  const bool is_valid =
      absl::c_all_of(std::array{activity.steps, activity.bytes_sent,
                                activity.bytes_received},
                     [](int64_t count) { return count >= 0; }) &&
      absl::c_all_of(std::array{activity.times.forward, activity.times.backward,
                                activity.times.other, activity.times.waiting,
                                activity.times.turn},
                     [](absl::Duration time) {
                       return time >= absl::ZeroDuration() &&
                              time < kActivityMax;
                     }) &&
      (!activity.busiest.has_value() ||
       (is_share(activity.busiest->share) &&
        is_share(activity.busiest->others.value_or(0))));
  if (is_valid) return absl::OkStatus();
  return InvalidArgumentError(
      "a member reports an activity with numbers below 0, with a time of a "
      "century, or with a share that is not in [0, 1]");
}

absl::Status CheckRange(absl::string_view name, int value, int low, int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidArgumentError(name, " is ", value, ", must be in [", low, ", ",
                              high, "]");
}

// True if a text is short enough, and all characters are in [`first`, '~'].
bool IsText(absl::string_view text, char first) {
  return text.size() <= kNameBytesMax &&
         absl::c_all_of(text, [&](char c) { return c >= first && c <= '~'; });
}

// Returns a refused text as an error shows it: in quotes or, if it is long, as
// its length in bytes.
std::string Shown(absl::string_view text) {
  constexpr size_t kShownBytesMax = 64;
  if (text.size() > kShownBytesMax) return absl::StrCat(text.size());
  return absl::StrCat("\"", Printable(text), "\"");
}

// Setting whose value two members do not share; "none" if a member lacks it.
struct OtherSetting {
  std::string name;
  std::string ours;
  std::string theirs;
};

// Returns the settings that differ, in the order of `ours`, then of `theirs`.
std::vector<OtherSetting> OtherSettings(const std::vector<Setting>& ours,
                                        const std::vector<Setting>& theirs) {
  const auto find = [](const std::vector<Setting>& all,
                       const std::string& name) {
    return absl::c_find_if(
        all, [&](const Setting& each) { return each.name == name; });
  };
  std::vector<OtherSetting> others;
  for (const Setting& setting : ours) {
    const auto their = find(theirs, setting.name);
    if (their == theirs.end()) {
      others.push_back({setting.name, setting.value, "none"});
    } else if (their->value != setting.value) {
      others.push_back({setting.name, setting.value, their->value});
    }
  }
  for (const Setting& setting : theirs) {
    if (find(ours, setting.name) != ours.end()) continue;
    others.push_back({setting.name, "none", setting.value});
  }
  return others;
}

}  // namespace

CheckpointRecord CoordinatorOptions::StartFor(
    absl::Span<const LayerSpec> layers) const {
  CheckpointRecord start = *start_checkpoint;
  start.contributions =
      ConvertContributions(start.contributions, restored_layers, layers);
  return start;
}

int64_t ConvertContributions(int64_t contributions,
                             absl::Span<const LayerSpec> made_with,
                             absl::Span<const LayerSpec> layers) {
  const size_t count = std::min(layers.size(), made_with.size());
  for (size_t i = 0; i < count; ++i) {
    const int64_t before = made_with[i].rows;
    const int64_t now = layers[i].rows;
    if (before <= 0 || now <= 0) continue;
    // Divides first: the product of all contributions and `before` might not
    // fit.
    return contributions / now * before + contributions % now * before / now;
  }
  return contributions;
}

absl::Status CheckName(absl::string_view what, const std::string& text) {
  if (!text.empty() && IsText(text, '!')) return absl::OkStatus();
  return InvalidArgumentError(
      "a member's ", what, " must be 1 to ", kNameBytesMax,
      " printable characters without spaces, not ", Shown(text));
}

absl::Status CheckText(absl::string_view what, const std::string& text) {
  if (IsText(text, ' ')) return absl::OkStatus();
  return InvalidArgumentError("a member's ", what, " must be at most ",
                              kNameBytesMax, " printable characters, not ",
                              Shown(text));
}

// Log lines and the status use the stalled layer as an index.
absl::Status CheckHeartbeat(const Heartbeat& heartbeat, const Job* job) {
  NEREUS_TRY(CheckStep("the step", heartbeat.begun_step));
  NEREUS_TRY(CheckStep("the pushed step", heartbeat.pushed_step));
  NEREUS_TRY(CheckStep("the round", heartbeat.round));
  NEREUS_TRY(CheckActivity(heartbeat.activity));
  if (!heartbeat.stall.has_value()) return absl::OkStatus();
  const Stall& stall = *heartbeat.stall;
  NEREUS_TRY(CheckStep("the stalled round", stall.round));
  if (job != nullptr && stall.layer >= 0 &&
      stall.layer < std::ssize(job->layers) &&
      stall.missing.size() <= kStallBytesMax &&
      stall.waited > absl::ZeroDuration()) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("a member reports that layer ", stall.layer,
                              " has waited ",
                              absl::FormatDuration(stall.waited),
                              ", with a reason of ", stall.missing.size(),
                              " bytes: the layer must be of the job, the time "
                              "above 0, and the reason at most ",
                              kStallBytesMax, " bytes");
}

absl::Status CompareSettings(absl::string_view our_name,
                             const std::vector<Setting>& ours,
                             absl::string_view their_name,
                             const std::vector<Setting>& theirs) {
  const std::vector<OtherSetting> others = OtherSettings(ours, theirs);
  if (others.empty()) return absl::OkStatus();
  const OtherSetting& first = others.front();
  return FailedPreconditionError(
      first.name, " differs: ", our_name, " has ", first.ours, ", ", their_name,
      " has ", first.theirs,
      "; all processes of a job must have the same value");
}

std::string CoordinatorOptions::DescribeOtherSettings(
    const std::vector<Setting>& settings) const {
  if (restored_settings.empty()) return "";
  std::vector<std::string> parts;
  for (const OtherSetting& other : OtherSettings(settings, restored_settings)) {
    parts.push_back(
        absl::StrCat(other.name, " is ", other.ours, ", was ", other.theirs));
  }
  if (parts.empty()) return "";
  return absl::StrCat(
      "the workers differ from those that made the checkpoint of round ",
      start_checkpoint->round, ": ", absl::StrJoin(parts, "; "),
      ". If the order of the examples depends on this, some of them are used "
      "twice or not at all");
}

absl::Status CheckStep(absl::string_view what, int64_t step) {
  if (step >= kInitialRound && step <= kStepMax) return absl::OkStatus();
  return InvalidArgumentError("a member reports ", what, " ", step,
                              ", must be in [", kInitialRound, ", ", kStepMax,
                              "]");
}

// MakeNextEpoch computes the next epoch from these numbers.
absl::Status CheckReport(const MachineReport& report) {
  NEREUS_TRY(CheckStep("the step", report.begun_step));
  for (const auto& [shard, round] : report.closed_rounds) {
    NEREUS_TRY(CheckRange("shard", shard, 0, kServersMax - 1));
    NEREUS_TRY(CheckStep("the round", round));
  }
  NEREUS_TRY(CheckRange("verdicts", static_cast<int>(report.verdicts.size()), 0,
                        kVerdictsMax));
  for (const StepVerdict& verdict : report.verdicts) {
    // The largest step is kStepMax + 1 here, and the smallest one 0.
    NEREUS_TRY(
        CheckStep("the step before", std::max<int64_t>(verdict.step, -1) - 1));
  }
  for (const MachineReport::PeerLayer& layer : report.peer_layers) {
    NEREUS_TRY(CheckStep("the round", layer.done_round));
    NEREUS_TRY(CheckRange("contributors", layer.contributors, 0, kWorkersMax));
  }
  return absl::OkStatus();
}

absl::Status CoordinatorOptions::Validate() const {
  NEREUS_TRY(spec.Validate());
  NEREUS_TRY(CheckName("job name", spec.name));
  if (reconnect_grace <= absl::ZeroDuration() || reconnect_grace > lease()) {
    return InvalidArgumentError("reconnect_grace is ",
                                absl::FormatDuration(reconnect_grace),
                                ", must be positive and at most the lease");
  }
  if (waiting_notice_interval <= absl::ZeroDuration()) {
    return InvalidArgumentError("waiting_notice_interval is ",
                                absl::FormatDuration(waiting_notice_interval),
                                ", must be positive");
  }
  return absl::OkStatus();
}

}  // namespace nereus
