#include "server/coordinator/broken_links.h"

#include <algorithm>
#include <cstdint>

#include "absl/algorithm/container.h"

namespace nereus {
namespace {

// Number of losses of one connection within kLossWindow at which one of its
// ends is dropped. A connection that lets nothing through is lost once in a
// lease, so the window has several of them.
constexpr size_t kLossesMax = 3;
const absl::Duration kLossWindow = absl::Minutes(1);
constexpr int kLossWindowLeases = 5;
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
  const absl::Duration window =
      reached ? std::max(kLossWindow, kLossWindowLeases * lease_)
              : kNeverReachedWindow;
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

PeerId BrokenLinks::WorseOf(const PeerPair& link, absl::Time since) const {
  if (link.first == own_) return link.second;
  if (link.second == own_) return link.first;
  const auto links_of = [&](PeerId member) {
    return absl::c_count_if(losses_, [&](const auto& entry) {
      return Ends(entry.first, member) && entry.second.back() >= since;
    });
  };
  const auto first = links_of(link.first);
  const auto second = links_of(link.second);
  if (first != second) return first > second ? link.first : link.second;
  const bool has_worker = link.first.role == Role::kWorker;
  const bool has_server = link.second.role == Role::kShard;
  return has_worker && has_server ? link.first : link.second;
}

}  // namespace nereus
