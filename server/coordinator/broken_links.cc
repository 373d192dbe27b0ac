#include "server/coordinator/broken_links.h"

#include <algorithm>
#include <cstdint>

#include "absl/algorithm/container.h"

namespace nereus {
namespace {

// Number of losses of one connection within kLossWindow at which one of its
// ends is dropped.
constexpr size_t kLossesMax = 3;
const absl::Duration kLossWindow = absl::Minutes(1);
// Window in place of kLossWindow for two members that were never connected.
const absl::Duration kNeverReachedWindow = absl::Minutes(10);

bool Ends(const PeerPair& link, PeerId member) {
  return link.first == member || link.second == member;
}

}  // namespace

// Both ends report a loss. The first report in an epoch counts.
std::optional<PeerId> BrokenLinks::Note(PeerId one, PeerId other, bool reached,
                                        absl::Time now) {
  const PeerPair link = std::minmax(one, other);
  if (!Add(link)) return std::nullopt;
  std::vector<absl::Time>& losses = losses_[link];
  const absl::Duration window = reached ? kLossWindow : kNeverReachedWindow;
  std::erase_if(losses, [&](absl::Time at) { return now - at > window; });
  losses.push_back(now);
  if (losses.size() < kLossesMax) return std::nullopt;
  const PeerId worse = WorseOf(link, now - window);
  losses_.erase(link);
  return worse;
}

void BrokenLinks::NoteSplit(PeerId one, PeerId other) {
  Add(std::minmax(one, other));
}

bool BrokenLinks::Add(const PeerPair& link) {
  if (absl::c_count(of_epoch_, link) > 0) return false;
  of_epoch_.push_back(link);
  return true;
}

void BrokenLinks::Forget(PeerId member) {
  std::erase_if(losses_,
                [&](const auto& entry) { return Ends(entry.first, member); });
}

// A worker is easier to replace than a server. If both ends have the same role,
// the end with more losses to all members is probably at fault.
PeerId BrokenLinks::WorseOf(const PeerPair& link, absl::Time since) const {
  if (link.first.role != link.second.role) return link.first;  // The worker.
  if (link.first == own_) return link.second;
  if (link.second == own_) return link.first;
  const auto losses_of = [&](PeerId member) {
    int64_t losses = 0;
    for (const auto& [ends, times] : losses_) {
      if (!Ends(ends, member)) continue;
      losses +=
          absl::c_count_if(times, [&](absl::Time at) { return at >= since; });
    }
    return losses;
  };
  return losses_of(link.first) > losses_of(link.second) ? link.first
                                                        : link.second;
}

}  // namespace nereus
