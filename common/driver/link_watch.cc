#include "common/driver/link_watch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"

namespace nereus {
namespace {

// Share of the busiest link's bytes that another link must have sent, so that
// its being less busy says something.
constexpr double kSomeTraffic = 0.25;

// Traffic of a link since the last call.
struct LinkTraffic {
  PeerId peer;
  double share = 0;  // BusyLink::share.
  int64_t bytes_sent = 0;
};

// Returns the lower median of the shares of links with enough traffic to be
// compared with the busiest one.
std::optional<double> MedianOfOthers(const std::vector<LinkTraffic>& links,
                                     const LinkTraffic& busiest) {
  if (busiest.bytes_sent <= 0) return std::nullopt;
  std::vector<double> shares;
  for (const LinkTraffic& link : links) {
    if (link.peer == busiest.peer) continue;
    const auto bytes = static_cast<double>(link.bytes_sent);
    if (bytes >= kSomeTraffic * static_cast<double>(busiest.bytes_sent)) {
      shares.push_back(link.share);
    }
  }
  if (shares.empty()) return std::nullopt;
  absl::c_sort(shares);
  return shares[(shares.size() - 1) / 2];
}

}  // namespace

void LinkWatch::Measure(const std::vector<TrafficCount>& traffic,
                        absl::Time now, Activity& activity) {
  const absl::Duration passed = now - std::exchange(at_, now);
  activity.bytes_sent = 0;
  activity.bytes_received = 0;
  std::vector<LinkTraffic> links;
  for (const TrafficCount& each : traffic) {
    activity.bytes_sent += each.bytes_sent;
    activity.bytes_received += each.bytes_received;
    const Last now_is = {each.busy.value_or(absl::ZeroDuration()),
                         each.bytes_sent};
    const Last before = std::exchange(last_[each.peer], now_is);
    if (!each.busy.has_value()) continue;
    const double share = absl::FDivDuration(now_is.busy - before.busy, passed);
    links.push_back({each.peer, std::clamp(share, 0.0, 1.0),
                     each.bytes_sent - before.bytes_sent});
  }
  if (links.empty() || passed == absl::InfiniteDuration()) return;
  const LinkTraffic busiest = *absl::c_max_element(links, [](const auto& a,
                                                             const auto& b) {
    return std::pair(a.share, a.bytes_sent) < std::pair(b.share, b.bytes_sent);
  });
  activity.busiest =
      BusyLink{busiest.peer, busiest.share, MedianOfOthers(links, busiest)};
}

}  // namespace nereus
